// Writes the console's libraries to web/static/vendor: `make vendor` runs it where their lock file is installed.
// Each becomes one minified ES module whose imports are relative, with its licence beside it and its digest in the manifest.
// The first line of each file states its licence and that it was changed, as Apache-2.0 demands of changed files.

import { createHash } from "node:crypto";
import { mkdir, readFile, readdir, rm, writeFile } from "node:fs/promises";
import { transform } from "esbuild";

const [target] = process.argv.slice(2);

// What pages import, and the file of the package that it is made of.
const MODULES = {
  "preact": "preact/dist/preact.mjs",
  "preact/hooks": "preact/hooks/dist/hooks.mjs",
  "htm": "htm/dist/htm.mjs",
  "@preact/signals-core": "@preact/signals-core/dist/signals-core.mjs",
  "@preact/signals": "@preact/signals/dist/signals.mjs",
  "uplot": "uplot/dist/uPlot.esm.js",
  "@dagrejs/dagre": "@dagrejs/dagre/dist/dagre.esm.js",
  "marked": "marked/lib/marked.esm.js",
  "dompurify": "dompurify/dist/purify.es.mjs",
};
// Changes of a module's source. uPlot throws while it is loaded if the browser's language is not a valid tag, such as `en-US@posix`.
const EDITS = { uplot: ["domEnv ? nav.language : 'en-US'", "'en-US'"] };
const STYLES = { uplot: "uplot/dist/uPlot.min.css" };

const fileOf = (name) => name.replace(/^@[^/]+\//, "").replaceAll("/", "-");
const packageOf = (name) => name.split("/").slice(0, name.startsWith("@") ? 2 : 1).join("/");
const digest = (text) => createHash("sha256").update(text).digest("hex");

// The text with `from"preact"` as `from"./preact.js"`; a module that is not vendored is an error.
function relative(code) {
  return code.replace(/(\bfrom|\bimport)\s*(["'])([^"'.][^"']*)\2/g, (_, word, quote, name) => {
    if (!(name in MODULES)) throw new Error(`${name} is not among the vendored modules`);
    return `${word}${quote}./${fileOf(name)}.js${quote}`;
  });
}

async function write(name, file, suffix, change) {
  const source = await readFile(`node_modules/${file}`, "utf8");
  const [from, to] = suffix === "js" && EDITS[name] || ["", ""];
  if (!source.includes(from)) throw new Error(`${file} has no ${from}`);
  const { version, license } = JSON.parse(await readFile(`node_modules/${packageOf(name)}/package.json`, "utf8"));
  const { code } = await transform(source.replace(from, to), { loader: suffix, minify: true, target: "es2022", format: suffix === "js" ? "esm" : undefined, legalComments: "inline" });
  const changed = ["minified", ...(suffix === "js" ? ["imports made relative"] : []), ...(from && [`${to} for ${from}`])].join(", ");
  const banner = `/*! ${packageOf(name)} ${version} | ${license} | changed: ${changed} | licence in ${fileOf(packageOf(name))}.LICENSE.txt */\n`;
  const text = banner + change(code.replace(/^\/\/# sourceMappingURL=.*$/m, ""));
  await writeFile(`${target}/${fileOf(name)}.${suffix}`, text);
  return { file: `${fileOf(name)}.${suffix}`, package: packageOf(name), version, license, sha256: digest(text), source: { file, sha256: digest(source) } };
}

async function writeLicences() {
  for (const name of new Set(Object.keys(MODULES).map(packageOf))) {
    const [file] = (await readdir(`node_modules/${name}`)).filter((one) => /^licen[cs]e/i.test(one)).sort();
    await writeFile(`${target}/${fileOf(name)}.LICENSE.txt`, await readFile(`node_modules/${name}/${file}`));
  }
}

// What the type checker takes in the module's place.
async function writeTypes(name) {
  const hasDefault = ["htm", "uplot", "@dagrejs/dagre", "dompurify"].includes(name);
  const lines = [`export * from "${name}";`, ...(hasDefault ? [`export { default } from "${name}";`] : [])];
  await writeFile(`${target}/${fileOf(name)}.d.ts`, `${lines.join("\n")}\n`);
}

await rm(target, { recursive: true, force: true });
await mkdir(target, { recursive: true });
const made = [];
for (const [name, file] of Object.entries(MODULES)) {
  made.push(await write(name, file, "js", relative));
  await writeTypes(name);
}
for (const [name, file] of Object.entries(STYLES)) made.push(await write(name, file, "css", (text) => text));
await writeLicences();
made.sort((one, other) => (one.file < other.file ? -1 : 1));
await writeFile(`${target}/manifest.json`, `${JSON.stringify(made, null, 2)}\n`);
