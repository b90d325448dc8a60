/**
 * The modules of a revision as the build has prepared them: scripts that are compiled to JavaScript, and which file each
 * import of the project and of its packages names.
 *
 * Most of the time to start a host went into finding and reading some hundred small files. The build follows the static
 * imports once, and keeps the results and the sources in two files. Imports that are not among them are found as usual.
 *
 * Hooks in this thread replace those of a loader of TypeScript. A script keeps its own URL, so that paths relative to it
 * and the lines in stacks are those of the source.
 *
 * @typedef {{url: string, format: string, source: () => string}} Known
 * @typedef {{base: string, patterns: Record<string, string[]>, folder: string | null}} Paths of a tsconfig.json
 */

import { readFileSync, statSync } from "node:fs";
import module from "node:module";
import path from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";

const { parse, stringify } = JSON;

/** The names of the files in the folder with prepared modules. The number is that of the format. */
export const [INDEX, SOURCES, CODE] = ["modules-1.json", "modules-1.js", "v8"];
export const TYPESCRIPT = /\.[cm]?tsx?$/;

// Scripts that an import of compiled JavaScript names: by the extension in the import.
const COMPILED = { ".js": [".ts", ".tsx"], ".jsx": [".tsx", ".ts"], ".mjs": [".mts"], ".cjs": [".cts"] };
const EXTENSIONS = [".ts", ".tsx", ".js", ".jsx", ".mjs", ".mts", ".cjs", ".cts", ".json"];
const UNKNOWN = new Set(["ERR_MODULE_NOT_FOUND", "MODULE_NOT_FOUND", "ERR_UNSUPPORTED_DIR_IMPORT"]);
const PACKAGES = "/node_modules/";

/** Finds and loads modules. */
export class Modules {
  /** @type {Map<string, Known>} by URL */
  known = new Map();
  /** @type {Map<string, Map<string, Known>>} by the URL of the importing module, and by specifier */
  imports = new Map();
  /** @type {Paths | null} */
  paths = null;

  /** Install the hooks in this thread. */
  install() {
    module.registerHooks({ resolve: this.resolve.bind(this), load: this.load.bind(this) });
  }

  resolve(specifier, context, next) {
    const found = !isRequired(context) ? this.imports.get(context.parentURL)?.get(specifier) : undefined;
    return found === undefined
      ? this.find(specifier, context, next)
      : { url: found.url, format: found.format, shortCircuit: true };
  }

  load(url, context, next) {
    const plain = url.replace(/[?#].*$/, "");
    const known = this.known.get(plain);
    if (known !== undefined) {
      return { format: known.format, source: known.source(), shortCircuit: true };
    }
    if (!isRequired(context) && plain.endsWith(".json") && !plain.includes(PACKAGES) && !context.importAttributes?.type) {
      return { format: "module", source: moduleOfJson(plain), shortCircuit: true };
    }
    return next(url, context);
  }

  /** Find a module by the rules of TypeScript, where they differ from those of Node. */
  find(specifier, context, next) {
    const { parentURL = "" } = context;
    const isOwn = parentURL.startsWith("file:") && !parentURL.includes(PACKAGES);
    const isPath = /^(?:\.{0,2}\/|\.{1,2}$|file:)/.test(specifier);
    if (isOwn && !specifier.startsWith("node:")) {
      const files = isPath
        ? [pathOf(specifier, parentURL)]
        : this.#mapped(specifier);
      for (const file of files) {
        const script = scriptOf(file, TYPESCRIPT.test(parentURL.replace(/[?#].*$/, "")));
        if (script !== undefined) {
          return next(isRequired(context) ? script : pathToFileURL(script).href + suffixOf(specifier), context);
        }
      }
    }
    try {
      return next(specifier, context);
    } catch (error) {
      if (!UNKNOWN.has(error?.code)) {
        throw error;
      }
      return this.#completed(specifier, context, next, error);
    }
  }

  /** Find a module whose import leaves out its extension, or names the compiled file of a script. */
  #completed(specifier, context, next, error) {
    const target = error.url?.startsWith("file:") ? scriptOf(fileURLToPath(error.url), true) : undefined;
    if (target !== undefined) {
      return next(isRequired(context) ? target : pathToFileURL(target).href, context);
    }
    const isBare = /^(?:@[^/]+\/)?[^./@][^/]*\//.test(specifier); // a file of a package
    if (isBare) {
      for (const end of [".js", ".mjs", ".cjs", ".json", "/index.js"]) {
        try {
          return next(specifier + end, context);
        } catch {
          continue;
        }
      }
    }
    throw error;
  }

  /** Return the files that an import may mean by the `paths` of the tsconfig.json. */
  #mapped(specifier) {
    if (this.paths === null) {
      return [];
    }
    const { base, patterns, folder } = this.paths;
    const files = folder === null ? [] : [path.join(folder, specifier)];
    let best;
    for (const pattern of Object.keys(patterns)) {
      const [before, after] = pattern.split("*");
      if (after === undefined ? pattern === specifier : isMatch(specifier, before, after)) {
        const length = after === undefined ? Infinity : before.length;
        if (best === undefined || length > best.length) {
          best = { length, pattern, rest: after === undefined ? "" : specifier.slice(before.length, specifier.length - after.length) };
        }
      }
    }
    const targets = best === undefined ? [] : patterns[best.pattern];
    return [...targets.map((target) => path.resolve(base, target.replace("*", best.rest))), ...files];
  }
}

/** Whether a module is found by `require`, which takes paths and no URLs. */
export function isRequired({ conditions }) {
  return conditions?.includes("require") ?? false;
}

function isMatch(specifier, before, after) {
  return specifier.length >= before.length + after.length && specifier.startsWith(before) && specifier.endsWith(after);
}

function pathOf(specifier, parentURL) {
  const url = new URL(specifier, parentURL);
  url.search = url.hash = "";
  return fileURLToPath(url);
}

function suffixOf(specifier) {
  return /[?#].*$/.exec(specifier)?.[0] ?? "";
}

/** Return the file that an import of a path means, unless it is the path itself; undefined if there is none. */
function scriptOf(file, isTypeScript) {
  const extension = path.extname(file);
  const stem = file.slice(0, file.length - extension.length);
  const scripts = (COMPILED[extension] ?? []).map((each) => stem + each);
  const kind = kindOf(file);
  const candidates = [
    ...(isTypeScript || kind === undefined ? scripts : []),
    ...(kind === "file" ? [file] : EXTENSIONS.map((each) => file + each)),
    ...(kind === "folder" ? EXTENSIONS.map((each) => path.join(file, `index${each}`)) : []),
  ];
  return candidates.find((each) => kindOf(each) === "file");
}

function kindOf(file) {
  const found = statSync(file, { throwIfNoEntry: false });
  return found?.isFile() ? "file" : found?.isDirectory() ? "folder" : undefined;
}

/** Return the source of a module with the content of a JSON file: as its default, and by name. */
function moduleOfJson(url) {
  const document = parse(readFileSync(fileURLToPath(url), "utf8"));
  const isObject = typeof document === "object" && document !== null && !Array.isArray(document);
  const names = isObject ? Object.keys(document).filter((name) => name !== "default" && name.isWellFormed()) : [];
  return [
    `const document = ${stringify(document)};`,
    "export default document;",
    ...names.map((name, n) => `const _${n} = document[${stringify(name)}]; export { _${n} as ${stringify(name)} };`),
  ].join("\n");
}

/** Read the prepared modules of a folder. */
export function read(folder) {
  const { files, imports, paths } = parse(readFileSync(path.join(folder, INDEX), "utf8"));
  const bytes = readFileSync(path.join(folder, SOURCES));
  const modules = new Modules();
  modules.paths = paths;
  const all = files.map(([url, format, begin, end]) => {
    const known = { url, format, source: () => bytes.toString("utf8", begin, end) };
    modules.known.set(url, known);
    return known;
  });
  for (const [parent, found] of imports) {
    const names = Object.entries(found).map(([specifier, file]) => [specifier, all[file]]);
    modules.imports.set(all[parent].url, new Map(/** @type {[string, Known][]} */ (names)));
  }
  return modules;
}

/** Return the texts of the two files that `read` reads. */
export function written(modules) {
  const numbers = new Map();
  const sources = [];
  let at = 0;
  const files = [...modules.known.values()].map(({ url, format, source }, number) => {
    const bytes = Buffer.from(source());
    numbers.set(url, number);
    sources.push(bytes);
    return [url, format, at, (at += bytes.length)];
  });
  const imports = [...modules.imports]
    .filter(([parent]) => numbers.has(parent))
    .map(([parent, found]) => [
      numbers.get(parent),
      Object.fromEntries([...found].map(([specifier, { url }]) => [specifier, numbers.get(url)]).filter(([, n]) => n !== undefined)),
    ]);
  return { index: stringify({ files, imports, paths: modules.paths }), sources: Buffer.concat(sources) };
}
