// A page that shows the components of a deployment beside its messages.

import { createRoot } from "react-dom/client";
import { useStream } from "@langchain/langgraph-sdk/react";
import { LoadExternalComponent } from "@langchain/langgraph-sdk/react-ui";

const query = new URLSearchParams(location.search);

function Page() {
  const stream = useStream({
    apiUrl: query.get("url"),
    assistantId: query.get("assistant"),
    defaultHeaders: { "X-Api-Key": query.get("key") },
  });
  const ask = () => stream.submit({ messages: [{ type: "human", content: "How is the weather?" }] });
  return (
    <main>
      <button onClick={ask}>Ask</button>
      {stream.values.ui?.map((ui) => (
        <LoadExternalComponent key={ui.id} className="card" stream={stream} message={ui} fallback={<i>loading</i>} />
      ))}
    </main>
  );
}

createRoot(document.querySelector("#root")).render(<Page />);
