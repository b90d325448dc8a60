// A chat as people build it: `?hook=` names the hook that drives it, `?thread=` the thread it shows.

import { useState } from "react";
import { createRoot } from "react-dom/client";
import { useMessageMetadata, useStream as useNewStream } from "@langchain/react";
import { useStream as useOldStream } from "@langchain/langgraph-sdk/react";

const query = new URLSearchParams(location.search);
const options = {
  apiUrl: query.get("url"),
  assistantId: query.get("graph"),
  defaultHeaders: { "X-Api-Key": query.get("key"), "X-Page": "yes" },
};
if (query.get("transport")) options.transport = query.get("transport");

const keep = (threadId) => {
  const next = new URL(location.href);
  if (threadId) next.searchParams.set("thread", threadId);
  else next.searchParams.delete("thread");
  history.replaceState(null, "", next);
};
const typeOf = (message) => message.type ?? message.getType();
const human = (text) => ({ messages: [{ type: "human", content: text }] });

function useThread() {
  const [threadId, show] = useState(query.get("thread"));
  return [threadId, (id) => (keep(id), show(id))];
}

function Chat({ stream, interrupt, answer, edit, threadId, show, Message }) {
  const [text, setText] = useState("");
  return (
    <main>
      <p>
        thread <b id="thread">{threadId ?? "none"}</b> <b id="state">{stream.isLoading ? "busy" : "ready"}</b>
      </p>
      <ol>
        {stream.messages.map((message) => (
          <Message key={message.id} message={message} stream={stream} edit={edit} />
        ))}
      </ol>
      {interrupt?.value && (
        <p id="question">
          {interrupt.value.question} <button onClick={() => answer("yes")}>Yes</button>
        </p>
      )}
      {stream.error && <pre id="error">{String(stream.error)}</pre>}
      <form onSubmit={(event) => (event.preventDefault(), stream.submit(human(text)), setText(""))}>
        <input value={text} onChange={(event) => setText(event.target.value)} />
        <button>Send</button>
      </form>
      <button onClick={() => stream.stop()}>Stop</button>
      <button onClick={() => show(null)}>New</button>
    </main>
  );
}

function Line({ message, onEdit }) {
  return (
    <li data-type={typeOf(message)}>
      <span>{typeof message.content === "string" ? message.content : message.content.map((part) => part.text).join("")}</span>
      {typeOf(message) === "human" && onEdit && <button onClick={() => onEdit("changed")}>Edit</button>}
    </li>
  );
}

function NewLine({ message, stream, edit }) {
  const { parentCheckpointId } = useMessageMetadata(stream, message.id) ?? {};
  return <Line message={message} onEdit={parentCheckpointId && ((text) => edit(text, parentCheckpointId))} />;
}

function OldLine({ message, stream, edit }) {
  const checkpoint = stream.getMessagesMetadata(message)?.firstSeenState?.parent_checkpoint;
  return <Line message={message} onEdit={checkpoint && ((text) => edit(text, checkpoint))} />;
}

function NewChat() {
  const [threadId, show] = useThread();
  const stream = useNewStream({ ...options, threadId, onThreadId: show });
  return (
    <Chat
      {...{ stream, threadId, show }}
      interrupt={stream.interrupt}
      answer={(value) => stream.respond(value, { interruptId: stream.interrupt.id })}
      edit={(text, forkFrom) => stream.submit(human(text), { forkFrom })}
      Message={NewLine}
    />
  );
}

function OldChat() {
  const [threadId, show] = useThread();
  const stream = useOldStream({ ...options, threadId, onThreadId: show, reconnectOnMount: true, fetchStateHistory: true });
  return (
    <Chat
      {...{ stream, threadId, show }}
      interrupt={stream.interrupt}
      answer={(resume) => stream.submit(undefined, { command: { resume } })}
      edit={(text, checkpoint) => stream.submit(human(text), { checkpoint })}
      Message={OldLine}
    />
  );
}

createRoot(document.getElementById("root")).render(query.get("hook") === "new" ? <NewChat /> : <OldChat />);
