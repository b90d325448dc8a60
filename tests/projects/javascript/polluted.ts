/** A project that adds members to all objects while it is loaded. Loops over the keys of an object do not find them. */

const members: Record<string, unknown> = JSON.parse(process.env.MEMBERS!);
for (const [name, value] of Object.entries(members)) {
  Object.defineProperty(Object.prototype, name, { value: value ?? (() => "added"), writable: true });
}

export { plain } from "./patching.ts";
