import { CopilotChat, CopilotKitProvider, useAgent, useFrontendTool, useInterrupt } from "@copilotkit/react-core/v2";
import { useState } from "react";
import { z } from "zod";

export function App() {
  return (
    <CopilotKitProvider runtimeUrl="/api/copilotkit">
      <Page />
    </CopilotKitProvider>
  );
}

function Page() {
  const [colour, setColour] = useState("white");
  const { agent } = useAgent();
  const orders: string[] = agent.state?.orders ?? [];

  // A tool of the page: the agent calls it, and gets the result as the next message.
  useFrontendTool({
    name: "paint_page",
    description: "Paint the background of the page",
    parameters: z.object({ colour: z.string() }),
    handler: async ({ colour }) => {
      setColour(colour);
      return `The page is ${colour} now`;
    },
  });

  // A question of the agent: the run waits until it is answered. `LangGraphAgent` sends it as an event with JSON.
  useInterrupt({
    render: ({ interrupt, event, resolve }) => (
      <div className="question">
        <p>{interrupt?.message ?? JSON.parse(String(event.value)).message}</p>
        <button onClick={() => resolve(true)}>Approve</button>
        <button onClick={() => resolve(false)}>Decline</button>
      </div>
    ),
  });

  return (
    <main style={{ background: colour }}>
      <aside>
        <h1>Orders</h1>
        <ul>{orders.map((order, at) => <li key={at}>{order}</li>)}</ul>
      </aside>
      <section>
        <CopilotChat />
      </section>
    </main>
  );
}
