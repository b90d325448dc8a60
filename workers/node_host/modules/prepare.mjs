/**
 * Prepares the modules of a revision, as a step of its build: `node prepare.mjs '{"root", "tools", "folder", "graphs", …}'`,
 * in the folder of the project's configuration.
 *
 * The scripts are compiled, and the static imports of the graphs are followed, without executing the project's code. Ends
 * with an error if an import cannot be found. The host then loads TypeScript with tsx, which may know more.
 */

import { existsSync, mkdirSync, readFileSync, readdirSync, realpathSync, writeFileSync } from "node:fs";
import module, { createRequire } from "node:module";
import path from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";

import { CODE, INDEX, Modules, SOURCES, TYPESCRIPT, isRequired, written } from "./index.mjs";

const MAX_SCRIPTS = 5_000;
const MAX_SOURCE_BYTES = 64 * 1024 * 1024;
const HERE = new URL("../", import.meta.url).href;
// Before Node 24, scripts that are not ES modules could not require others.
const REQUIRES = Number(process.versions.node.split(".")[0]) >= 24;
const NOTHING = "data:text/javascript,";
const TSCONFIG = "tsconfig.json";

const { tools, folder, config, root: given } = JSON.parse(process.argv[2]);
const root = realpathSync(given);
const requireTool = createRequire(path.join(tools, "package.json"));

/** Remembers what it finds and loads. */
class Recorder extends Modules {
  #found = new Map();

  resolve(specifier, context, next) {
    const result = this.find(specifier, context, next);
    const { parentURL } = context;
    if (!isRequired(context) && parentURL !== undefined && result.url.startsWith("file:")) {
      const found = this.#found.get(parentURL) ?? new Map();
      this.#found.set(parentURL, found.set(specifier, result.url));
    }
    return result;
  }

  load(url, context, next) {
    const result = super.load(url, context, next);
    if (result.format === "commonjs" && this.known.has(url) && !REQUIRES) {
      throw new Error(`${fileURLToPath(url)} is no ES module`);
    }
    const isFile = url.startsWith("file:") && !url.startsWith(HERE) && !/[?#]|\.json$/.test(url);
    if (isFile && result.format === "module" && result.source && !this.known.has(url)) {
      const source = Buffer.from(result.source).toString();
      this.known.set(url, { url, format: "module", source: () => source });
    }
    return result;
  }

  /** Make the imports that were found those of all further ones. */
  finish() {
    for (const [parent, found] of this.#found) {
      const names = [...found].map(([specifier, url]) => [specifier, this.known.get(url)]).filter(([, known]) => known);
      this.imports.set(parent, new Map(/** @type {any} */ (names)));
    }
  }
}

/** Return the scripts in TypeScript of a folder, without those of packages. */
function scriptsIn(parent) {
  const found = [];
  for (const entry of readdirSync(parent, { withFileTypes: true })) {
    const file = path.join(parent, entry.name);
    if (entry.isDirectory() && entry.name !== "node_modules" && entry.name !== ".git") {
      found.push(...scriptsIn(file));
    } else if (entry.isFile() && TYPESCRIPT.test(entry.name) && !/\.d\.[cm]?ts$/.test(entry.name)) {
      found.push(file);
    }
  }
  return found;
}

/** Return the format of a script: by its extension, or by the nearest package.json. */
function formatOf(file) {
  const extension = path.extname(file);
  if (extension === ".mts" || extension === ".cts") {
    return extension === ".mts" ? "module" : "commonjs";
  }
  for (let at = path.dirname(file); at.startsWith(root); at = path.dirname(at)) {
    try {
      const { type } = JSON.parse(readFileSync(path.join(at, "package.json"), "utf8"));
      return type === "module" ? "module" : "commonjs";
    } catch (error) {
      if (error.code !== "ENOENT") {
        throw error;
      }
    }
  }
  return "commonjs";
}

/** Compile scripts to JavaScript. Leaves out those with errors: an import of them names the error. */
async function compile(scripts, format, tsconfig) {
  if (!scripts.length) {
    return [];
  }
  const options = {
    entryPoints: scripts.map((script) => ({ in: script, out: path.relative(root, script) })),
    outdir: root, // so that the sources in the maps are relative to the script's own folder
    write: false,
    format: format === "module" ? "esm" : "cjs",
    platform: "node",
    target: `node${process.versions.node}`,
    keepNames: true, // esbuild renames what hides another name, and graphs name nodes and tools by their functions
    sourcemap: "inline",
    sourcesContent: false,
    logLevel: "silent",
    ...(tsconfig ? { tsconfig } : {}),
  };
  const { build } = requireTool("esbuild");
  let result;
  try {
    result = await build(options);
  } catch (error) {
    const broken = new Set((error.errors ?? []).map(({ location }) => path.resolve(location?.file ?? "")));
    const sound = scripts.filter((script) => !broken.has(script));
    if (sound.length === scripts.length) {
      throw error;
    }
    return await compile(sound, format, tsconfig);
  }
  return result.outputFiles.map(({ path: output, text }) => {
    return { url: pathToFileURL(output.replace(/\.js$/, "")).href, format, source: () => text };
  });
}

/** Return the `paths` of the project's tsconfig.json; null if it has none. */
function pathsOf(tsconfig) {
  if (tsconfig === null || !/"(?:paths|baseUrl|extends)"/.test(readFileSync(tsconfig, "utf8"))) {
    return null;
  }
  const ts = requireTool("typescript");
  const { options } = ts.getParsedCommandLineOfConfigFile(tsconfig, {}, {
    ...ts.sys, readDirectory: () => [], onUnRecoverableConfigFileDiagnostic() {},
  }) ?? { options: {} };
  const base = options.pathsBasePath ?? options.baseUrl ?? path.dirname(tsconfig);
  return options.paths || options.baseUrl
    ? { base: options.baseUrl ?? base, patterns: options.paths ?? {}, folder: options.baseUrl ?? null }
    : null;
}

/** Return the files of the project that the host loads. */
function entriesOf({ graphs, auth, http, store, replay }) {
  const ofGraphs = Object.values(graphs).map((entry) => entry.path ?? entry);
  const places = [...ofGraphs, auth?.path, http?.app, ...Object.values(http?.apps ?? {}), store?.index?.embed, replay?.score];
  return places.filter(Boolean).map((place) => path.resolve(place.replace(/:[^:/\\]*$/, "")));
}

/** Read all modules that files import, and execute none: the import of a name that does not exist fails before that. */
async function link(files) {
  const imports = files.map((file) => `import ${JSON.stringify(pathToFileURL(file).href)};`);
  const source = `import { nothing } from ${JSON.stringify(NOTHING)};${imports.join("")}`;
  try {
    await import(NOTHING + encodeURIComponent(source));
  } catch (error) {
    if (!(error instanceof SyntaxError && error.message.includes("'nothing'"))) {
      throw error;
    }
  }
}

/** Execute the modules of the host and of its library once, so that their compiled code is stored. */
async function warm() {
  await import("../host.mjs");
  const { libraryOf } = await import("../loading.mjs");
  try {
    await libraryOf(config.graphs);
  } catch {
    // the inspection reports it
  }
}

async function prepare() {
  const modules = new Recorder();
  const tsconfig = existsSync(TSCONFIG) ? path.resolve(TSCONFIG) : null;
  modules.paths = pathsOf(tsconfig);
  const scripts = scriptsIn(root);
  if (scripts.length > MAX_SCRIPTS) {
    throw new Error(`more than ${MAX_SCRIPTS} scripts`);
  }
  for (const format of ["module", "commonjs"]) {
    const compiled = await compile(scripts.filter((script) => formatOf(script) === format), format, tsconfig);
    compiled.forEach((known) => modules.known.set(known.url, known));
  }
  mkdirSync(path.join(folder, CODE), { recursive: true });
  module.enableCompileCache(path.join(folder, CODE));
  modules.install();
  await warm();
  await link(entriesOf(config));
  modules.finish();
  const { index, sources } = written(modules);
  if (sources.length > MAX_SOURCE_BYTES) {
    throw new Error(`more than ${MAX_SOURCE_BYTES / 2 ** 20} MiB of modules`);
  }
  module.flushCompileCache();
  writeFileSync(path.join(folder, SOURCES), sources);
  writeFileSync(path.join(folder, INDEX), index);
}

try {
  await prepare();
} catch (error) {
  process.stdout.write(`${error?.message ?? error}\n`.split("\n", 1)[0]);
  process.exitCode = 1;
}
process.exit();
