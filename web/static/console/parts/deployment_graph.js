// The graphs of a deployment. One graph is drawn at a time.

import { html, useEffect, useState } from "../core/dom.js";
import { href, setQuery } from "../core/router.js";
import { Empty, ErrorBox, Loading, Select } from "./index.js";

/** @param {{name: string, assistants: any[], graph?: string}} props */
export function DeploymentGraph({ name, assistants, graph }) {
  const { Graph, error } = useDrawing();
  const names = assistants.map((one) => one.graph_id).sort();
  const shown = assistants.find((one) => one.graph_id === graph) ?? assistants.find((one) => one.graph_id === names[0]);
  if (!shown) return html`<${Empty} title="No graphs" text="The key “graphs” of langgraph.json lists the graphs of a project." />`;
  return html`
    <div class="bar">
      <${Select} label="Graph" value=${shown.graph_id} options=${names} onChange=${(/** @type {string} */ value) => setQuery({ graph: value })} />
      <a href=${href(["d", name, "playground", shown.graph_id])}>Open in the playground</a>
    </div>
    <${ErrorBox} error=${error} />
    ${Graph ? html`<${Graph} key=${shown.assistant_id} deployment=${name} assistantId=${shown.assistant_id} />` : html`<${Loading} />`}`;
}

/** Load the module that draws graphs. It is loaded with the first drawing. */
function useDrawing() {
  const [state, setState] = useState(/** @type {{Graph?: any, error?: any}} */ ({}));
  useEffect(() => void import("./graph.js").then(({ Graph }) => setState({ Graph }), (error) => setState({ error })), []);
  return state;
}
