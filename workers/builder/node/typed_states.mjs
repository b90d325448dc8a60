/**
 * JSON Schemas of states that exist as types only, such as those of `Annotation`. The types come from the compiler of
 * TypeScript, which runs no code of the project.
 *
 * Arguments: the compiler's module, a folder, JSON with the entry (`path:export`) of each graph, and a file. The file gets
 * JSON: by graph, the schemas of the fields of its `input`, `output` and `state`.
 */

import { writeFileSync } from "node:fs";
import path from "node:path";
import { pathToFileURL } from "node:url";

const [compiler, folder, entries, result] = process.argv.slice(2);
const { default: ts } = await import(pathToFileURL(compiler).href);

const MAX_DEPTH = 6;
const MAX_FIELDS = 200;
const PARTS = ["input", "output", "state"];
// The exported graph, one that a function makes, the graph of a builder, or that of `createAgent`.
const HELPERS = `
type Made<T> = T extends (...args: any[]) => infer R ? Awaited<R> : Awaited<T>;
type Compiled<T> = T extends { compile(...args: any[]): infer C } ? C
  : T extends { graph: infer G extends { "~InputType": unknown } } ? G : T;
type Of<T, K extends string> = Compiled<Made<T>> extends { [_ in K]: infer V } ? V : never;
`;

/** Return the text of a module that exports the types of a graph's states. */
function probe(file, name) {
  const graph = name === "default" ? "default as graph" : `${name} as graph`;
  return `import { ${graph} } from ${JSON.stringify(`./${path.basename(file)}`)};${HELPERS}
export type input = Of<typeof graph, "~InputType">;
export type output = Of<typeof graph, "~OutputType">;
export type state = Of<typeof graph, "~RunOutput">;
`;
}

function optionsOf() {
  const found = ts.findConfigFile(folder, ts.sys.fileExists, "tsconfig.json");
  const read = found && ts.readConfigFile(found, ts.sys.readFile);
  const given = read?.config ? ts.parseJsonConfigFileContent(read.config, ts.sys, path.dirname(found)).options : {};
  return {
    module: ts.ModuleKind.NodeNext, moduleResolution: ts.ModuleResolutionKind.NodeNext, target: ts.ScriptTarget.ES2022,
    ...given,
    strict: true, noEmit: true, skipLibCheck: true, allowJs: true, allowImportingTsExtensions: true,
  };
}

/** Return a program with one more module beside the file of each graph. */
function programOf(probes) {
  const options = optionsOf();
  const host = ts.createCompilerHost(options);
  const { fileExists, readFile, getSourceFile } = host;
  host.fileExists = (file) => probes.has(file) || fileExists.call(host, file);
  host.readFile = (file) => probes.get(file) ?? readFile.call(host, file);
  host.getSourceFile = (file, language, ...rest) =>
    probes.has(file)
      ? ts.createSourceFile(file, probes.get(file), language)
      : getSourceFile.call(host, file, language, ...rest);
  return ts.createProgram([...probes.keys()], options, host);
}

class Schemas {
  #checker;

  constructor(checker) {
    this.#checker = checker;
  }

  /** Return the schemas of an object's fields. */
  fields(type, depth = 0) {
    const result = {};
    for (const property of this.#checker.getPropertiesOfType(type).slice(0, MAX_FIELDS)) {
      const schema = this.of(this.#checker.getTypeOfSymbol(property), depth + 1);
      Object.defineProperty(result, property.name, { value: schema, enumerable: true });
    }
    return result;
  }

  /** Return the schema of a type; an empty one for any that JSON does not describe. */
  of(type, depth) {
    const { TypeFlags } = ts;
    if (depth > MAX_DEPTH) {
      return {};
    }
    if (type.isUnion()) {
      return this.#union(type.types, depth);
    }
    if (type.isStringLiteral() || type.isNumberLiteral()) {
      return { const: type.value };
    }
    if (type.flags & TypeFlags.BooleanLiteral) {
      return { const: this.#checker.typeToString(type) === "true" };
    }
    for (const [flag, name] of [["String", "string"], ["Number", "number"], ["Boolean", "boolean"], ["Null", "null"]]) {
      if (type.flags & TypeFlags[flag]) {
        return { type: name };
      }
    }
    return type.flags & (TypeFlags.Object | TypeFlags.Intersection) ? this.#object(type, depth) : {};
  }

  #union(types, depth) {
    const defined = types.filter((type) => !(type.flags & (ts.TypeFlags.Undefined | ts.TypeFlags.Void)));
    // LangGraph accepts a value in an envelope in the place of each update
    const values = defined.filter((type) => type.getProperty("__overwrite__") === undefined);
    const schemas = values.map((type) => this.of(type, depth));
    if (schemas.some((schema) => Object.keys(schema).length === 0)) {
      return {};
    }
    const texts = new Set(schemas.map((schema) => JSON.stringify(schema)));
    if (texts.has('{"const":true}') && texts.has('{"const":false}')) {
      ['{"const":true}', '{"const":false}'].forEach((text) => texts.delete(text));
      texts.add('{"type":"boolean"}');
    }
    const different = [...texts].map((text) => JSON.parse(text));
    if (different.length > 1 && different.every((schema) => "const" in schema)) {
      return { enum: different.map((schema) => schema.const) };
    }
    return different.length === 1 ? different[0] : { anyOf: different };
  }

  #object(type, depth) {
    if (this.#checker.isArrayType(type) || this.#checker.isTupleType(type)) {
      const items = this.#checker.getIndexTypeOfType(type, ts.IndexKind.Number);
      return { type: "array", items: items === undefined ? {} : this.of(items, depth + 1) };
    }
    const isClass = Boolean(type.symbol?.flags & ts.SymbolFlags.Class) || type.symbol?.name === "Date";
    if (isClass || type.getCallSignatures().length || type.getConstructSignatures().length) {
      return {};
    }
    const index = this.#checker.getIndexTypeOfType(type, ts.IndexKind.String);
    const properties = this.fields(type, depth);
    const required = this.#checker
      .getPropertiesOfType(type)
      .filter((property) => !(property.flags & ts.SymbolFlags.Optional) && property.name in properties)
      .map((property) => property.name);
    return {
      type: "object",
      ...(Object.keys(properties).length ? { properties } : {}),
      ...(required.length ? { required } : {}),
      ...(index === undefined ? {} : { additionalProperties: this.of(index, depth + 1) }),
    };
  }
}

const probes = new Map();
const places = new Map();
for (const [graphId, entry] of Object.entries(JSON.parse(entries))) {
  const [, place, name] = /^(.*?)(?::([^:/\\]*))?$/.exec(entry);
  const file = path.resolve(folder, place);
  const own = path.join(path.dirname(file), `.typed-states-${probes.size}.mts`);
  probes.set(own, probe(file, name || "default"));
  places.set(graphId, own);
}
const program = programOf(probes);
const checker = program.getTypeChecker();
const schemas = new Schemas(checker);
const found = {};
for (const [graphId, own] of places) {
  const source = program.getSourceFile(own);
  const aliases = source.statements.filter(ts.isTypeAliasDeclaration);
  const parts = PARTS.map((part) => {
    const alias = aliases.find((each) => each.name.text === part);
    return [part, schemas.fields(checker.getTypeAtLocation(alias))];
  });
  Object.defineProperty(found, graphId, { value: Object.fromEntries(parts), enumerable: true });
}
writeFileSync(result, JSON.stringify(found));
