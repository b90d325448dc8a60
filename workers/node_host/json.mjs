/** JSON as it was before the project's code was imported, and without what a project adds to the prototype of all objects. */

const { parse, stringify: encode } = JSON;
const { isArray } = Array;
const { keys, setPrototypeOf } = Object;
// Members of the runner's documents that the project's code receives.
const PASSED_ON = new Set([
  "configurable", "context", "filter", "input", "metadata", "resume", "update", "user", "value", "values",
]);
/** @type {any} */
const NOTHING = Object.freeze([]);

export { parse };

/**
 * Decode a document of the runner. Its objects have no prototype: a member that is absent would otherwise be the one that
 * the project has added to all objects. Members that the project's code receives are ordinary values.
 *
 * @param {Buffer | string} data
 */
export function parseDocument(data) {
  return withoutPrototype(parse(data.toString()));
}

function withoutPrototype(value) {
  if (typeof value !== "object" || value === null) {
    return value;
  }
  if (isArray(value)) {
    value.forEach(withoutPrototype);
    return value;
  }
  setPrototypeOf(value, null);
  keys(value).filter((name) => !PASSED_ON.has(name)).forEach((name) => withoutPrototype(value[name]));
  return value;
}

/** Encode a value that consists of plain objects, arrays, texts, numbers, booleans and null. */
export function stringify(value) {
  return NOTHING.toJSON === undefined ? encode(value) : written(value);
}

function written(value) {
  if (typeof value !== "object" || value === null) {
    return encode(value);
  }
  if (isArray(value)) {
    return `[${value.map((item) => written(item) ?? "null").join(",")}]`;
  }
  const names = keys(value).filter((name) => value[name] !== undefined);
  return `{${names.map((name) => `${encode(name)}:${written(value[name])}`).join(",")}}`;
}
