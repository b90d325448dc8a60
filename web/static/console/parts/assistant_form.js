// The form of an assistant: its context by the schema of the graph, and the rest of its configuration as JSON.

import { deployment } from "../core/api.js";
import { html, useState } from "../core/dom.js";
import { useResource } from "../core/resource.js";
import { FormDialog, useForm } from "./form_dialog.js";
import { Field, JsonEditor, Loading, TextArea, TextField } from "./index.js";
import { SchemaEditor } from "./schema_form.js";

/** @param {any} assistant a record, or a version of one */
export function configurationOf(assistant) {
  const { configurable: _context, ...config } = assistant?.config ?? {};
  return config;
}

/**
 * The dialog that creates an assistant, or a new version of one.
 * @param {{name: string, assistant?: any, graphs: string[], onClose: () => void, onDone: (assistant: any) => void}} props
 */
export function AssistantForm({ name, assistant, graphs, onClose, onDone }) {
  const before = {
    graph_id: assistant?.graph_id ?? graphs[0] ?? "", name: assistant?.name ?? "", description: assistant?.description ?? "",
    context: assistant?.context ?? {}, config: configurationOf(assistant), metadata: assistant?.metadata ?? {},
  };
  const form = useForm(before);
  const { values } = form;
  const [fault, setFault] = useState(/** @type {string | null} */ (null)); // of the context
  const isWrong = Boolean(fault) || [values.context, values.config, values.metadata].some((value) => value === undefined);
  const save = async () => {
    const at = deployment(name);
    if (!assistant) return onDone(await at.call("POST", "/assistants", { body: values }));
    return onDone(await at.call("PATCH", `/assistants/${assistant.assistant_id}`, { body: changed(before, values) }));
  };
  return html`
    <${FormDialog} title=${assistant ? "New version" : "New assistant"} wide disabled=${isWrong} onClose=${onClose} onSubmit=${save}
      label=${assistant ? "Save as a new version" : "Create assistant"}>
      ${() => html`
        <${Field} label="Graph">
          <select value=${values.graph_id} onChange=${(/** @type {any} */ event) => form.set({ graph_id: event.currentTarget.value })}>
            ${graphs.map((graph) => html`<option key=${graph} value=${graph} selected=${graph === values.graph_id}>${graph}</option>`)}
          </select><//>
        <${TextField} label="Name" required maxlength="1024" autofocus ...${form.bind("name")} />
        <${TextArea} label="Description" rows=${2} ...${form.bind("description")} />
        <${Context} key=${values.graph_id} name=${name} graph=${values.graph_id} form=${form} onFault=${setFault} />
        <details><summary>More configuration and metadata</summary>
          <${JsonEditor} label="Configuration" hint="For example tags and recursion_limit" rows=${4} value=${values.config} onChange=${(/** @type {any} */ config) => form.set({ config })} />
          <${JsonEditor} label="Metadata" hint=${assistant ? "Merged with the present metadata; no key is removed" : null} rows=${4} value=${values.metadata} onChange=${(/** @type {any} */ metadata) => form.set({ metadata })} />
        </details>`}
    <//>`;
}

/** The context, by the schema of the graph if it has one. @param {{name: string, graph: string, form: any, onFault: (fault: string | null) => void}} props */
function Context({ name, graph, form, onFault }) {
  const load = (/** @type {AbortSignal} */ signal) => deployment(name).call("GET", `/assistants/${encodeURIComponent(graph)}/schemas`, { signal });
  const found = useResource(load, [name, graph]);
  if (found.loading) return html`<${Loading} />`;
  const schema = found.data?.context_schema ?? found.data?.config_schema;
  return html`<h3>Context</h3><${SchemaEditor} label="Context" schema=${schema} value=${form.values.context} onFault=${onFault} onChange=${(/** @type {any} */ context) => form.set({ context })} />`;
}

/** The changed fields. Context and configuration are sent together, because each alone would replace the other. @param {Record<string, any>} before @param {Record<string, any>} now */
function changed(before, now) {
  const isOther = (/** @type {string} */ part) => JSON.stringify(before[part]) !== JSON.stringify(now[part]);
  const parts = ["graph_id", "name", "description", "metadata"].filter(isOther);
  if (isOther("context") || isOther("config")) parts.push("context", "config");
  return Object.fromEntries(parts.map((part) => [part, now[part]]));
}
