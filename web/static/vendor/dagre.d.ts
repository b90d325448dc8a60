export * from "@dagrejs/dagre";
export { default } from "@dagrejs/dagre";
