/**
 * JSON Schemas of states and contexts that exist as types only, such as those of `Annotation`. The types come from the
 * compiler of TypeScript, which runs no code of the project.
 *
 * Arguments: the compiler's module, a folder, JSON with the entry (`path:export`) of each graph, and a file. The file gets
 * JSON with `graphs`: by graph, the schemas of the fields of its `input`, `output`, `state` and `context`, and with
 * `subgraphs`: by name of a node, a list of the same for each graph that the project adds as a node of this name.
 */

import { writeFileSync } from "node:fs";
import path from "node:path";
import { pathToFileURL } from "node:url";

const [compiler, folder, entries, result] = process.argv.slice(2);
const { default: ts } = await import(pathToFileURL(compiler).href);

const MAX_DEPTH = 6;
const MAX_FIELDS = 200;
const PARTS = { input: "~InputType", output: "~OutputType", state: "~RunOutput" };
const MAX_NODES = 500; // of the project, whose types are read
// The exported graph, one that a function makes, the graph of a builder, or that of `createAgent`.
const HELPERS = `
type Made<T> = T extends (...args: any[]) => infer R ? Awaited<R> : Awaited<T>;
type Compiled<T> = T extends { compile(...args: any[]): infer C } ? C
  : T extends { graph: infer G extends { "~InputType": unknown } } ? G : T;
`;

/** Return the text of a module that exports a graph's type. */
function probe(file, name) {
  const graph = name === "default" ? "default as graph" : `${name} as graph`;
  return `import { ${graph} } from ${JSON.stringify(`./${path.basename(file)}`)};${HELPERS}
export type found = Compiled<Made<typeof graph>>;
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

  /** Return the schemas of the fields of a graph's parts; null for a type that is no graph. */
  graph(type) {
    const parts = Object.entries(PARTS).map(([part, name]) => [part, type.getProperty(name)]);
    if (parts.some(([, property]) => property === undefined)) {
      return null;
    }
    const found = parts.map(([part, property]) => [part, this.fields(this.#checker.getTypeOfSymbol(property))]);
    return Object.fromEntries([...found, ["context", this.#context(type)]]);
  }

  /** Return the schemas of the fields of a graph's context, which `invoke` takes as an option. */
  #context(type) {
    let found = type;
    for (const name of ["invoke", null, "context"]) {
      const signature = name === null ? this.#checker.getSignaturesOfType(found, ts.SignatureKind.Call).at(-1) : null;
      const symbol = name === null ? signature?.getParameters()[1] : found.getProperty(name);
      if (symbol === undefined) {
        return {};
      }
      found = this.#checker.getNonNullableType(this.#checker.getTypeOfSymbol(symbol));
    }
    return this.fields(found);
  }

  /** Return the schemas of the graphs that are nodes of others, or are named as the subgraphs of a node, by the node's name. */
  subgraphs(files) {
    const found = new Map();
    let left = MAX_NODES;
    const visit = (node) => {
      const [name, action, options] = ts.isCallExpression(node) ? node.arguments : [];
      if (left > 0 && node.expression?.name?.text === "addNode" && name !== undefined && ts.isStringLiteralLike(name)) {
        left -= 1;
        const graphs = [action, ...this.#declared(options)].map((each) => each && this.#graphOf(each)).filter(Boolean);
        found.set(name.text, [...(found.get(name.text) ?? []), ...graphs]);
      }
      ts.forEachChild(node, visit);
    };
    files.forEach(visit);
    return found;
  }

  /** Return the expressions in the option `subgraphs` of a node. */
  #declared(options) {
    const properties = options && ts.isObjectLiteralExpression(options) ? options.properties : [];
    const declared = properties.find((property) => property.name?.text === "subgraphs")?.initializer;
    return declared && ts.isArrayLiteralExpression(declared) ? [...declared.elements] : [];
  }

  #graphOf(expression) {
    const type = this.#checker.getTypeAtLocation(expression);
    const inner = type.getProperty("graph"); // of the wrapper of `createAgent`
    return this.graph(type) ?? (inner && this.graph(this.#checker.getTypeOfSymbol(inner)));
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
const graphs = {};
for (const [graphId, own] of places) {
  const alias = program.getSourceFile(own).statements.filter(ts.isTypeAliasDeclaration).at(-1);
  const value = schemas.graph(checker.getTypeAtLocation(alias));
  Object.defineProperty(graphs, graphId, { value, enumerable: true });
}
const files = program.getSourceFiles().filter((file) => !file.isDeclarationFile && !file.fileName.includes("/node_modules/"));
const subgraphs = Object.fromEntries(schemas.subgraphs(files));
writeFileSync(result, JSON.stringify({ graphs, subgraphs }));
