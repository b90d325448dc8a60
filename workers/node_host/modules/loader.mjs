/** Installs the prepared modules of a revision: `node --import loader.mjs?folder=… …`. Threads of the project do so, too. */

import module from "node:module";
import path from "node:path";

import { CODE, read } from "./index.mjs";

const folder = new URL(import.meta.url).searchParams.get("folder") ?? "";
module.setSourceMapsSupport(true, { nodeModules: false, generatedCode: false }); // the maps of packages take long to read
module.enableCompileCache(path.join(folder, CODE));
read(folder).install();
