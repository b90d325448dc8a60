/**
 * Bundles the components of generative UI, as a step of a build:
 * `node components.mjs '{"tools", "sets", "shared", "result"}'`, in the folder of the project's configuration.
 *
 * `LoadExternalComponent` of @langchain/langgraph-sdk/react-ui runs a bundle as a script of the page and then calls its
 * `render`. The page provides React and what it shares, through a global function. Ends with an error if a set cannot be
 * bundled. The project's code runs only if its styles name a plugin of Tailwind.
 */

import { readFile, writeFile } from "node:fs/promises";
import { createRequire } from "node:module";
import path from "node:path";

const PROVIDED = ["react", "react-dom", "react/jsx-runtime", "@langchain/langgraph-sdk/react", "@langchain/langgraph-sdk/react-ui"];
const ENTRY = "components.js"; // the name of our script in errors
const INLINED = [".png", ".jpg", ".jpeg", ".gif", ".webp", ".svg", ".woff", ".woff2"];

const { tools, sets, shared, result } = JSON.parse(process.argv[2]);
const requireTool = createRequire(path.join(tools, "package.json"));
const { build } = requireTool("esbuild");
const postcss = requireTool("postcss");
const tailwind = requireTool("@tailwindcss/postcss");

// Tailwind finds its own styles in the project, else in our tools.
globalThis.__tw_resolve = (id, base) => {
  const file = { tailwindcss: "index.css" }[id] ?? /^tailwindcss\/([\w-]+)(?:\.css)?$/.exec(id)?.[1].concat(".css");
  if (file === undefined) {
    return undefined;
  }
  for (const require of [createRequire(path.join(base, "any.css")), requireTool]) {
    try {
      return require.resolve(`tailwindcss/${file}`);
    } catch (error) {
      if (!["MODULE_NOT_FOUND", "ERR_PACKAGE_PATH_NOT_EXPORTED"].includes(error.code)) {
        throw error;
      }
    }
  }
  return undefined;
};

/** Take modules from the page instead of bundling them: the page and its components must share one copy of React. */
const fromPage = {
  name: "from-page",
  setup({ onResolve, onLoad }) {
    const provided = new Set([...PROVIDED, ...shared]);
    onResolve({ filter: /.*/ }, ({ path: name }) => (provided.has(name) ? { path: name, namespace: "page" } : undefined));
    onLoad({ filter: /.*/, namespace: "page" }, ({ path: name }) => {
      return { contents: `module.exports = globalThis[Symbol.for("LGUI_REQUIRE")](${JSON.stringify(name)});` };
    });
  },
};

const styles = {
  name: "styles",
  setup({ onLoad }) {
    onLoad({ filter: /\.css$/, namespace: "file" }, async ({ path: file }) => {
      const { css } = await postcss([tailwind()]).process(await readFile(file, "utf8"), { from: file });
      return { contents: css, loader: file.endsWith(".module.css") ? "local-css" : "css", resolveDir: path.dirname(file) };
    });
  },
};

/** Return the script that gives a component, and an element of the page for it, to the page. */
function entryOf(file) {
  return `
    import components from ${JSON.stringify(file)};
    export function render(name, shadowRootId) {
      if (!Object.hasOwn(components, name)) {
        throw new Error("the deployment has no component " + JSON.stringify(name));
      }
      const target = document.createElement("div");
      document.getElementById(shadowRootId).shadowRoot.appendChild(target);
      window[Symbol.for("LGUI_EXT_STORE")].respond(shadowRootId, components[name], target);
    }`;
}

async function bundle({ entry, global }) {
  const { outputFiles } = await build({
    stdin: { contents: entryOf(path.resolve(entry)), resolveDir: process.cwd(), sourcefile: ENTRY, loader: "js" },
    outdir: path.resolve("dist"),
    write: false,
    bundle: true,
    minify: true,
    platform: "browser",
    target: "es2022",
    format: "iife",
    globalName: global,
    jsx: "automatic",
    jsxDev: false,
    loader: Object.fromEntries(INLINED.map((extension) => [extension, "dataurl"])),
    plugins: [fromPage, styles],
    logLevel: "silent",
  });
  return Object.fromEntries(outputFiles.map(({ path: file, text }) => [path.extname(file).slice(1), text]));
}

function reasonOf(error) {
  const [first] = error?.errors ?? [];
  if (first === undefined) {
    return String(error?.message ?? error);
  }
  const { file, line } = first.location ?? {};
  return file === undefined || file === ENTRY ? first.text : `${file}:${line}: ${first.text}`;
}

let current;
try {
  const bundled = {};
  for (const [name, set] of Object.entries(sets)) {
    current = name;
    bundled[name] = await bundle(set);
  }
  await writeFile(result, JSON.stringify(bundled));
} catch (error) {
  process.stdout.write(`${current}: ${reasonOf(error)}\n`.split("\n", 1)[0]);
  process.exitCode = 1;
}
process.exit();
