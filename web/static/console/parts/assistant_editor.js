// The dialog of an assistant in the playground: its name, and its context by the schema of the graph.

import { html, useState } from "../core/dom.js";
import { deployment as at } from "../core/api.js";
import { assistantName } from "../core/format.js";
import { useResource } from "../core/resource.js";
import { Button, Dialog, ErrorBox, Loading, TextField } from "./index.js";
import { initial } from "./schema.js";
import { SchemaEditor } from "./schema_form.js";

/**
 * @param {{deployment: string, graphId: string, assistant: any|null, onClose: () => void, onSaved: (assistant: any) => void}} props
 *   `assistant` null: the dialog creates one
 */
export function AssistantEditor({ deployment, graphId, assistant, onClose, onSaved }) {
  const { data: schemas, error } = useResource(
    (signal) => at(deployment).call("GET", `/assistants/${encodeURIComponent(assistant?.assistant_id ?? graphId)}/schemas`, { signal }), [deployment, graphId, assistant?.assistant_id]);
  const title = assistant ? `Change ${assistantName(assistant)}` : `New assistant of ${graphId}`;
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
      onSaved(await saveAssistant());
    } catch (refusal) {
      setError(refusal);
    }
  };

  // A body with `context` alone would drop the rest of the configuration. The service stores `configurable` as the context.
  function saveAssistant() {
    const { recursion_limit: _limit, configurable: _context, ...others } = assistant?.config ?? {};
    const config = { ...others, ...(limit && { recursion_limit: Number(limit) }), configurable: context };
    const body = { name: name.trim() || "Untitled", description: description.trim() || null, config };
    if (assistant) return at(deployment).call("PATCH", `/assistants/${assistant.assistant_id}`, { body });
    return at(deployment).call("POST", "/assistants", { body: { graph_id: graphId, ...body } });
  }

  const actions = html`<${Button} onClick=${onClose}>Cancel<//>
    <${Button} kind="primary" disabled=${fault !== null} onClick=${save}>${assistant ? "Save as a new version" : "Create assistant"}<//>`;
  return html`<${Dialog} title=${title} open=${true} onClose=${onClose} actions=${actions} wide=${true}>
    <${ErrorBox} error=${error} />
    <div class="form-row">
      <${TextField} label="Name" value=${name} onInput=${setName} placeholder="Untitled" />
      <${TextField} label="Recursion limit" type="number" value=${limit} onInput=${setLimit} placeholder="Default of the graph" />
    </div>
    <${TextField} label="Description" value=${description} onInput=${setDescription} />
    <h3>Context</h3>
    ${!hasSchema && html`<p class="hint">This graph has no context schema. Its nodes read these values from their configuration.</p>`}
    <${SchemaEditor} schema=${hasSchema ? schema : null} value=${context} onChange=${setContext} onFault=${setFault} label="Context" />
  <//>`;
}
