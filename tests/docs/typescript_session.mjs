// Execute TypeScript blocks in one namespace. Started as a program by `sessions.py`: one JSON object per line each way.
//
// Node's REPL evaluates `await` at the top level and keeps what a block declares with `var`, even inside `try`. It
// accepts neither types nor static imports, and reports no error of a block to its callback.
import { writeSync } from "node:fs";
import { stripTypeScriptTypes } from "node:module";
import { createInterface } from "node:readline";
import { PassThrough } from "node:stream";
import repl from "node:repl";

const session = repl.start({ input: new PassThrough(), output: new PassThrough(), prompt: "", useGlobal: true });

const renamed = (names) => names.replaceAll(" as ", ": ");
const script = (text) =>
  stripTypeScriptTypes(text)
    .replace(/^import\s+(\w+)\s*,\s*\{([^}]*)\}\s+from\s+("[^"]+");?/gm, (_, main, names, from) =>
      `var { default: ${main}, ${renamed(names)} } = await import(${from});`)
    .replace(/^import\s+\{([^}]*)\}\s+from\s+("[^"]+");?/gm, (_, names, from) =>
      `var { ${renamed(names)} } = await import(${from});`)
    .replace(/^import\s+\*\s+as\s+(\w+)\s+from\s+("[^"]+");?/gm, "var $1 = await import($2);")
    .replace(/^import\s+(\w+)\s+from\s+("[^"]+");?/gm, "var { default: $1 } = await import($2);")
    .replace(/^(?:export )?(?:const|let) /gm, "var ")
    .replace(/^(?:export )?((?:async )?function\*? (\w+))/gm, "var $2 = $1")
    .replace(/^(?:export )?class (\w+)/gm, "var $1 = class $1");

for await (const line of createInterface({ input: process.stdin })) {
  const block = JSON.parse(line);
  process.chdir(block.folder);
  for (const name of Object.keys(process.env)) delete process.env[name];
  Object.assign(process.env, block.environment);
  globalThis.blockError = undefined;
  const failure = await new Promise((resolve) => {
    try {
      const code = `try { await null;\n${script(block.text)}\n} catch (error) { globalThis.blockError = error ?? "?"; }\n`;
      session.eval(code, session.context, block.place, resolve);
    } catch (error) {
      resolve(error); // of the types, or of the syntax
    }
  });
  const error = failure ?? globalThis.blockError;
  writeSync(3, `${JSON.stringify({ error: error ? `${error.stack ?? error}` : null })}\n`);
}
process.exit(0);
