// Makes an assistant, or a new version of one: its name and what its graph's context schema asks for.

import { html, useState } from "../core/dom.js";
import { deployment as at } from "../core/api.js";
import { useResource } from "../core/resource.js";
import { Button, Dialog, ErrorBox, Loading, TextField } from "./index.js";
import { initial } from "./schema.js";
import { SchemaEditor } from "./schema_form.js";

/**
 * @param {{deployment: string, graphId: string, assistant: any|null, onClose: () => void, onSaved: (assistant: any) => void}} props
 *   without `assistant` a new one is made
 */
export function AssistantEditor({ deployment, graphId, assistant, onClose, onSaved }) {
  const { data: schemas, error } = useResource(
    (signal) => at(deployment).call("GET", `/assistants/${encodeURIComponent(assistant?.assistant_id ?? graphId)}/schemas`, { signal }), [deployment, graphId, assistant?.assistant_id]);
  const title = assistant ? `Change ${assistant.name}` : `New assistant of ${graphId}`;
  if (schemas) return html`<${EditorDialog} title=${title} schema=${schemas.context_schema ?? schemas.config_schema} ...${{ deployment, graphId, assistant, onClose, onSaved }} />`;
  return html`<${Dialog} title=${title} open=${true} onClose=${onClose}>${error ? html`<${ErrorBox} error=${error} />` : html`<${Loading} />`}<//>`;
}

/** @param {any} props */
function EditorDialog({ title, schema, deployment, graphId, assistant, onClose, onSaved }) {
  const hasSchema = Boolean(schema && Object.keys(schema.properties ?? {}).length);
  const [name, setName] = useState(assistant?.name ?? "");
  const [description, setDescription] = useState(assistant?.description ?? "");
  const [context, setContext] = useState(() => assistant?.context ?? (hasSchema ? initial(schema, schema) : {}));
  const [limit, setLimit] = useState(String(assistant?.config?.recursion_limit ?? ""));
  const [fault, setFault] = useState(/** @type {string|null} */ (null));
  const [error, setError] = useState(/** @type {any} */ (null));

  const save = async () => {
    setError(null);
    try {
      onSaved(await sent());
    } catch (refused) {
      setError(refused);
    }
  };

  // With `context` alone a new version would lose what else is configured; `configurable` is the same object.
  function sent() {
    const { recursion_limit: _limit, configurable: _context, ...others } = assistant?.config ?? {};
    const config = { ...others, ...(limit && { recursion_limit: Number(limit) }), configurable: context };
    const body = { name: name.trim() || "Untitled", description: description.trim() || null, config };
    if (assistant) return at(deployment).call("PATCH", `/assistants/${assistant.assistant_id}`, { body });
    return at(deployment).call("POST", "/assistants", { body: { graph_id: graphId, ...body } });
  }

  const actions = html`<${Button} onClick=${onClose}>Cancel<//>
    <${Button} kind="primary" disabled=${fault !== null} onClick=${save}>${assistant ? "Save as a new version" : "Make assistant"}<//>`;
  return html`<${Dialog} title=${title} open=${true} onClose=${onClose} actions=${actions} wide=${true}>
    <${ErrorBox} error=${error} />
    <div class="form-row">
      <${TextField} label="Name" value=${name} onInput=${setName} placeholder="Untitled" />
      <${TextField} label="Recursion limit" type="number" value=${limit} onInput=${setLimit} placeholder="the graph's own" />
    </div>
    <${TextField} label="Description" value=${description} onInput=${setDescription} />
    <h3>Context</h3>
    ${!hasSchema && html`<p class="hint">This graph names no context schema: whatever is given here, its nodes find in their configuration.</p>`}
    <${SchemaEditor} schema=${hasSchema ? schema : null} value=${context} onChange=${setContext} onFault=${setFault} label="Context" />
  <//>`;
}
