// A chat as people build it: `?hook=` names the hook that drives it, `?thread=` the thread it shows, `?queue=` who keeps
// what is sent while a run works: the `server`, or the page (`local`).

import { useEffect, useState, useSyncExternalStore } from "react";
import { createRoot } from "react-dom/client";
import { STREAM_CONTROLLER, useMessageMetadata, useMessages, useStream as useNewStream, useSubmissionQueue } from "@langchain/react";
import { Client } from "@langchain/langgraph-sdk";
import { StreamController } from "@langchain/langgraph-sdk/stream";
import { useStream as useOldStream } from "@langchain/langgraph-sdk/react";

const query = new URLSearchParams(location.search);
const options = {
  apiUrl: query.get("url"),
  assistantId: query.get("graph"),
  defaultHeaders: { "X-Api-Key": query.get("key"), "X-Page": "yes" },
};
const queue = query.get("queue");
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

const textOf = ({ content }) => (typeof content === "string" ? content : content.map((part) => part.text).join(""));

function Chat({ stream, interrupt, answer, edit, threadId, show, send, Message, children }) {
  const [text, setText] = useState("");
  return (
    <main>
      <p>
        thread <b id="thread">{threadId ?? "none"}</b> <b id="state">{stream.isLoading ? "busy" : "ready"}</b>
      </p>
      <ol>
        {stream.messages.map(
          (message) => typeOf(message) !== "tool" && <Message key={message.id} message={message} stream={stream} edit={edit} />,
        )}
      </ol>
      {children}
      {interrupt?.value && (
        <p id="question">
          {interrupt.value.question} <button onClick={() => answer("yes")}>Yes</button>
        </p>
      )}
      {stream.error && <pre id="error">{String(stream.error)}</pre>}
      <form onSubmit={(event) => (event.preventDefault(), send(human(text)), setText(""))}>
        <input value={text} onChange={(event) => setText(event.target.value)} />
        <button>Send</button>
      </form>
      <button onClick={() => stream.stop()}>Stop</button>
      <button onClick={() => show(null)}>New</button>
    </main>
  );
}

// A message with the tools it calls, each of them with what became of it.
function Line({ message, onEdit, tools }) {
  return (
    <li data-type={typeOf(message)}>
      <span>{textOf(message)}</span>
      {typeOf(message) === "human" && onEdit && <button onClick={() => onEdit("changed")}>Edit</button>}
      {tools.map(({ id, name, args, state, result }) => (
        <p key={id} className="tool" data-state={state}>
          {name}({JSON.stringify(args)}) {result}
        </p>
      ))}
    </li>
  );
}

function NewLine({ message, stream, edit }) {
  const { parentCheckpointId } = useMessageMetadata(stream, message.id) ?? {};
  const mine = new Set(message.tool_calls?.map((call) => call.id));
  const tools = stream.toolCalls
    .filter((call) => mine.has(call.callId))
    .map(({ callId: id, name, args, status: state, output, error }) => ({ id, name, args, state, result: error ?? shown(output) }));
  return <Line {...{ message, tools }} onEdit={parentCheckpointId && ((text) => edit(text, parentCheckpointId))} />;
}

const shown = (output) => (output == null || typeof output === "string" ? output : textOf(output));

const STATES = { pending: "running", completed: "finished" };

function OldLine({ message, stream, edit }) {
  const checkpoint = stream.getMessagesMetadata(message)?.firstSeenState?.parent_checkpoint;
  const tools = stream
    .getToolCalls(message)
    .map(({ id, call, state, result }) => ({ id, ...call, state: STATES[state] ?? state, result: result && textOf(result) }));
  return <Line {...{ message, tools }} onEdit={checkpoint && ((text) => edit(text, checkpoint))} />;
}

// What is sent while a run works, and may be taken back until its turn comes.
function Queue({ stream }) {
  const { entries, cancel } = useSubmissionQueue(stream);
  return entries.map((entry) => (
    <p key={entry.id} className="queued">
      <i>{textOf(entry.values.messages.at(-1))}</i> <button onClick={() => cancel(entry.id)}>Drop</button>
    </p>
  ));
}

// What is said in a graph within the graph, or by an agent who works for this one.
function Others({ stream, name, status, target }) {
  const messages = useMessages(stream, target);
  return (
    <section data-name={name} data-status={status}>
      {messages.map((message) => (
        <p key={message.id} data-type={typeOf(message)}>
          {textOf(message)}
        </p>
      ))}
    </section>
  );
}

// What the newer hook sits on, with the option that the hook has not learnt: the server keeps the queue.
function useServerQueue({ apiUrl, defaultHeaders, ...given }) {
  const [controller] = useState(() => new StreamController({ ...given, client: new Client({ apiUrl, defaultHeaders }), queue }));
  useEffect(() => controller.activate(), [controller]);
  const root = useSyncExternalStore(controller.rootStore.subscribe, controller.rootStore.getSnapshot);
  return {
    ...root,
    subagents: new Map(),
    subgraphs: new Map(),
    submit: (...submitted) => controller.submit(...submitted),
    stop: () => controller.stop(),
    [STREAM_CONTROLLER]: controller,
  };
}

const useStream = queue === "server" ? useServerQueue : useNewStream;

function NewChat() {
  const [threadId, show] = useThread();
  const stream = useStream({ ...options, threadId, onThreadId: show });
  return (
    <Chat
      {...{ stream, threadId, show }}
      send={(input) => stream.submit(input, queue && { multitaskStrategy: "enqueue" })}
      interrupt={stream.interrupt}
      answer={(value) => stream.respond(value, { interruptId: stream.interrupt.id })}
      edit={(text, forkFrom) => stream.submit(human(text), { forkFrom })}
      Message={NewLine}
    >
      <Queue stream={stream} />
      {[...stream.subagents.values()].map((agent) => (
        <Others key={agent.id} {...{ stream, target: agent, name: agent.name, status: agent.status }} />
      ))}
      {[...stream.subgraphs.values()].map((graph) => (
        <Others key={graph.id} {...{ stream, target: graph, name: graph.nodeName, status: graph.status }} />
      ))}
    </Chat>
  );
}

function OldChat() {
  const [threadId, show] = useThread();
  const stream = useOldStream({ ...options, threadId, onThreadId: show, reconnectOnMount: true, fetchStateHistory: true });
  return (
    <Chat
      {...{ stream, threadId, show }}
      send={stream.submit}
      interrupt={stream.interrupt}
      answer={(resume) => stream.submit(undefined, { command: { resume } })}
      edit={(text, checkpoint) => stream.submit(human(text), { checkpoint })}
      Message={OldLine}
    />
  );
}

createRoot(document.getElementById("root")).render(query.get("hook") === "new" ? <NewChat /> : <OldChat />);
