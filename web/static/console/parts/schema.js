// JSON Schemas for forms: the kind of field of a schema, default values, and validation of single values.

/**
 * @typedef {Record<string, any>} Schema
 * @typedef {"string"|"text"|"number"|"integer"|"boolean"|"enum"|"array"|"object"|"json"} Kind
 * @typedef {{kind: Kind, nullable: boolean, schema: Schema}} FieldKind
 */

const MAX_DEPTH = 6; // a schema may contain a reference to itself

/** Resolve the references of a schema. Keywords beside `$ref` take precedence over those of its target. @param {Schema|undefined} schema @param {Schema} root @returns {Schema} */
export function resolved(schema, root) {
  let result = schema ?? {};
  for (let depth = 0; result.$ref && depth < MAX_DEPTH; depth += 1) {
    const { $ref, ...others } = result;
    const target = String($ref).replace(/^#\//, "").split("/").reduce((/** @type {any} */ at, part) => at?.[decodeURIComponent(part)], root);
    result = { ...target, ...others };
  }
  if (result.allOf?.length === 1) {
    const { allOf, ...others } = result;
    result = { ...resolved(allOf[0], root), ...others };
  }
  return result;
}

/** Return the kind of field that edits values of a schema. @param {Schema|undefined} reference @param {Schema} root @param {number} depth @returns {FieldKind} */
export function kindOf(reference, root, depth = 0) {
  const schema = resolved(reference, root);
  const branches = schema.anyOf ?? schema.oneOf;
  if (branches) return unionKind(schema, branches, root, depth);
  if (Array.isArray(schema.type)) {
    const types = schema.type.filter((/** @type {string} */ type) => type !== "null");
    const nullable = types.length < schema.type.length;
    return types.length === 1 ? { ...kindOf({ ...schema, type: types[0] }, root, depth), nullable } : { kind: "json", nullable, schema };
  }
  return { kind: plainKind(schema, root, depth), nullable: false, schema };
}

/** @param {Schema} schema @param {Schema[]} branches @param {Schema} root @param {number} depth @returns {FieldKind} */
function unionKind(schema, branches, root, depth) {
  const { anyOf: _any, oneOf: _one, ...rest } = schema;
  const types = branches.filter((each) => resolved(each, root).type !== "null");
  const nullable = types.length < branches.length;
  const consts = types.map((each) => resolved(each, root)).filter((each) => "const" in each);
  if (consts.length === types.length && consts.length) return { kind: "enum", nullable, schema: { ...rest, enum: consts.map((each) => each.const) } };
  if (types.length !== 1) return { kind: "json", nullable, schema };
  const inner = kindOf(types[0], root, depth);
  return { kind: inner.kind, nullable: nullable || inner.nullable, schema: { ...inner.schema, ...rest } };
}

/** @param {Schema} schema @param {Schema} root @param {number} depth @returns {Kind} */
function plainKind(schema, root, depth) {
  if (schema.enum) return "enum";
  if ("const" in schema) return "enum";
  if (schema.type === "string") return schema.format === "textarea" || schema.maxLength > 200 ? "text" : "string";
  if (schema.type === "boolean" || schema.type === "integer" || schema.type === "number") return schema.type;
  if (depth >= MAX_DEPTH) return "json";
  if (schema.type === "array" && schema.items && !schema.prefixItems) return kindOf(schema.items, root, depth + 1).kind === "json" ? "json" : "array";
  if (schema.properties && Object.keys(schema.properties).length) return "object";
  return "json";
}

/** Return the values of an enum. @param {Schema} schema @returns {any[]} */
export function choicesOf(schema) {
  return schema.enum ?? ("const" in schema ? [schema.const] : []);
}

/** Return a new value of a schema: its default, else an empty value with the required fields. @param {Schema|undefined} reference @param {Schema} root @returns {any} */
export function initial(reference, root, depth = 0) {
  const { kind, nullable, schema } = kindOf(reference, root, depth);
  if (schema.default !== undefined) return schema.default;
  if (nullable) return null;
  if (kind === "object") {
    const required = new Set(schema.required ?? []);
    const entries = Object.entries(schema.properties)
      .filter(([name, each]) => required.has(name) || resolved(/** @type {Schema} */ (each), root).default !== undefined)
      .map(([name, each]) => [name, initial(/** @type {Schema} */ (each), root, depth + 1)]);
    return Object.fromEntries(entries);
  }
  if (kind === "enum") return choicesOf(schema)[0];
  const empty = { string: "", text: "", number: 0, integer: 0, boolean: false, array: [], json: schema.type === "array" ? [] : schema.type === "object" ? {} : null };
  return /** @type {Record<string, any>} */ (empty)[kind];
}

/** Check the bounds of a number and the length of a text. Returns an error text, empty for a valid value. @param {any} value @param {Schema} schema @returns {string} */
export function faultOf(value, schema) {
  if (typeof value === "number") {
    if (schema.minimum !== undefined && value < schema.minimum) return `At least ${schema.minimum}.`;
    if (schema.exclusiveMinimum !== undefined && value <= schema.exclusiveMinimum) return `More than ${schema.exclusiveMinimum}.`;
    if (schema.maximum !== undefined && value > schema.maximum) return `At most ${schema.maximum}.`;
    if (schema.exclusiveMaximum !== undefined && value >= schema.exclusiveMaximum) return `Less than ${schema.exclusiveMaximum}.`;
  }
  if (typeof value === "string") {
    if (schema.maxLength !== undefined && value.length > schema.maxLength) return `At most ${schema.maxLength} characters.`;
    if (value && schema.minLength !== undefined && value.length < schema.minLength) return `At least ${schema.minLength} characters.`;
  }
  return "";
}

/** Return the label of a field: its title, unless that only repeats the name. @param {string} name @param {Schema} schema */
export function titleOf(name, schema) {
  const words = name.replaceAll("_", " ");
  return schema.title && schema.title.toLowerCase() !== words.toLowerCase() && schema.type !== "object" ? schema.title : name;
}

/** Return the names of required fields without a value. @param {any} value @param {Schema|null|undefined} schema @returns {string[]} */
export function missingIn(value, schema) {
  const root = schema ?? {};
  const required = resolved(root, root).required ?? [];
  return required.filter((/** @type {string} */ name) => value?.[name] === undefined);
}
