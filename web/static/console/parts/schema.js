// JSON Schemas as forms see them: what kind of field a value needs, its default, what an empty one is.

/**
 * @typedef {Record<string, any>} Schema
 * @typedef {"string"|"text"|"number"|"integer"|"boolean"|"enum"|"array"|"object"|"json"} Kind
 * @typedef {{kind: Kind, nullable: boolean, schema: Schema}} FieldKind
 */

const DEEPEST = 6; // schemas may refer to themselves

/** A schema without its references; what it says beside one goes over it. @param {Schema|undefined} schema @param {Schema} root @returns {Schema} */
export function resolved(schema, root) {
  let found = schema ?? {};
  for (let depth = 0; found.$ref && depth < DEEPEST; depth += 1) {
    const { $ref, ...own } = found;
    const target = String($ref).replace(/^#\//, "").split("/").reduce((/** @type {any} */ at, part) => at?.[decodeURIComponent(part)], root);
    found = { ...target, ...own };
  }
  if (found.allOf?.length === 1) {
    const { allOf, ...own } = found;
    found = { ...resolved(allOf[0], root), ...own };
  }
  return found;
}

/** Which field a schema is edited with. @param {Schema|undefined} given @param {Schema} root @param {number} depth @returns {FieldKind} */
export function kindOf(given, root, depth = 0) {
  const schema = resolved(given, root);
  const among = schema.anyOf ?? schema.oneOf;
  if (among) return unionKind(schema, among, root, depth);
  if (Array.isArray(schema.type)) {
    const types = schema.type.filter((/** @type {string} */ type) => type !== "null");
    const nullable = types.length < schema.type.length;
    return types.length === 1 ? { ...kindOf({ ...schema, type: types[0] }, root, depth), nullable } : { kind: "json", nullable, schema };
  }
  return { kind: plainKind(schema, root, depth), nullable: false, schema };
}

/** @param {Schema} schema @param {Schema[]} among @param {Schema} root @param {number} depth @returns {FieldKind} */
function unionKind(schema, among, root, depth) {
  const { anyOf: _any, oneOf: _one, ...own } = schema;
  const others = among.filter((each) => resolved(each, root).type !== "null");
  const nullable = others.length < among.length;
  const consts = others.map((each) => resolved(each, root)).filter((each) => "const" in each);
  if (consts.length === others.length && consts.length) return { kind: "enum", nullable, schema: { ...own, enum: consts.map((each) => each.const) } };
  if (others.length !== 1) return { kind: "json", nullable, schema };
  const inner = kindOf(others[0], root, depth);
  return { kind: inner.kind, nullable: nullable || inner.nullable, schema: { ...inner.schema, ...own } };
}

/** @param {Schema} schema @param {Schema} root @param {number} depth @returns {Kind} */
function plainKind(schema, root, depth) {
  if (schema.enum) return "enum";
  if ("const" in schema) return "enum";
  if (schema.type === "string") return schema.format === "textarea" || schema.maxLength > 200 ? "text" : "string";
  if (schema.type === "boolean" || schema.type === "integer" || schema.type === "number") return schema.type;
  if (depth >= DEEPEST) return "json";
  if (schema.type === "array" && schema.items && !schema.prefixItems) return kindOf(schema.items, root, depth + 1).kind === "json" ? "json" : "array";
  if (schema.properties && Object.keys(schema.properties).length) return "object";
  return "json";
}

/** The choices of an enum. @param {Schema} schema @returns {any[]} */
export function choicesOf(schema) {
  return schema.enum ?? ("const" in schema ? [schema.const] : []);
}

/** What a new value of a schema begins with: its default, or what is required of it. @param {Schema|undefined} given @param {Schema} root @returns {any} */
export function initial(given, root, depth = 0) {
  const { kind, nullable, schema } = kindOf(given, root, depth);
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

/** What is called wrong with a value where a form can tell. @param {any} value @param {Schema} schema @returns {string} */
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

/** What a field is called. @param {string} name @param {Schema} schema */
export function titleOf(name, schema) {
  const plain = name.replaceAll("_", " ");
  return schema.title && schema.title.toLowerCase() !== plain.toLowerCase() && schema.type !== "object" ? schema.title : name;
}

/** Required fields that have nothing in them. @param {any} value @param {Schema|null|undefined} schema @returns {string[]} */
export function missingIn(value, schema) {
  const root = schema ?? {};
  const required = resolved(root, root).required ?? [];
  return required.filter((/** @type {string} */ name) => value?.[name] === undefined);
}
