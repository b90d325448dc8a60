/** JSON as it was before the project's code was imported, and without the `toJSON` that a project gives all objects. */

const { parse, stringify: encode } = JSON;
const { isArray } = Array;
const { keys } = Object;
/** @type {any} */
const NOTHING = Object.freeze([]);

export { parse };

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
