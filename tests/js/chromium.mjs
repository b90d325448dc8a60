// The browser of the tests, with the rules of the web: the package's own arguments switch some of them off.

import packed from "@sparticuz/chromium";
import { chromium } from "playwright-core";

const OFF = new Set(["--single-process", "--disable-web-security", "--allow-running-insecure-content", "--disable-site-isolation-trials"]);
const QUIET = ["--disable-background-networking", "--disable-component-update", "--disable-sync"];

export async function launch() {
  const args = [...packed.args.filter((one) => !OFF.has(one)), ...QUIET];
  return chromium.launch({ executablePath: await packed.executablePath(), args, headless: true });
}
