// The browser of a file's tests, with the rules of the web: the package's own arguments switch some of them off.

import { after } from "node:test";
import packed from "@sparticuz/chromium";
import { chromium } from "playwright-core";

const OFF = new Set(["--single-process", "--disable-web-security", "--allow-running-insecure-content", "--disable-site-isolation-trials"]);
const QUIET = ["--disable-background-networking", "--disable-component-update", "--disable-sync"];

packed.setGraphicsMode = false; // pages are drawn without OpenGL, which would be emulated

const args = [...packed.args.filter((one) => !OFF.has(one)), ...QUIET];

export const browser = await chromium.launch({ executablePath: await packed.executablePath(), args, headless: true });

after(() => browser.close());

/** Let the docs pages of a context draw these paths of their document alone: to draw all takes a minute of a processor. */
export function drawOnly(context, ...paths) {
  return context.addInitScript((kept) => {
    const parse = JSON.parse;
    JSON.parse = (...given) => {
      const value = parse(...given);
      if (value?.openapi) value.paths = Object.fromEntries(Object.entries(value.paths).filter(([path]) => kept.includes(path)));
      return value;
    };
  }, paths);
}
