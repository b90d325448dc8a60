import { type BaseMessage, HumanMessage } from "@langchain/core/messages";
import { useStream } from "@langchain/react";
import { type FormEvent, useState } from "react";

const query = new URLSearchParams(location.search);

type State = { messages: BaseMessage[] };
type Question = { question: string };

/** Keep the thread's id in the address, so that a page that is loaded again shows the same conversation. */
function useThreadId() {
  const [threadId, setThreadId] = useState(query.get("thread"));
  const show = (id: string | null) => {
    const url = new URL(location.href);
    if (id) url.searchParams.set("thread", id);
    else url.searchParams.delete("thread");
    history.replaceState(null, "", url);
    setThreadId(id);
  };
  return [threadId, show] as const;
}

export function Chat() {
  const [text, setText] = useState("");
  const [threadId, setThreadId] = useThreadId();
  const stream = useStream<State, Question>({
    apiUrl: `${location.origin}/agent`,
    assistantId: query.get("graph") ?? "react",
    threadId,
    onThreadId: setThreadId,
  });

  const answer = (approve: boolean) => void stream.respond({ approve }, { interruptId: stream.interrupt!.id! });

  const send = (event: FormEvent) => {
    event.preventDefault();
    void stream.submit({ messages: [new HumanMessage(text)] });
    setText("");
  };

  return (
    <main>
      <header>
        <h1>Chat</h1>
        <button onClick={() => setThreadId(null)}>New conversation</button>
      </header>

      <ol>
        {stream.messages.map((message) => (
          <li key={message.id} className={message.getType()}>
            {message.text}
          </li>
        ))}
      </ol>

      {stream.interrupt && (
        <section className="question">
          <p>{stream.interrupt.value?.question}</p>
          <button onClick={() => answer(true)}>Approve</button>
          <button onClick={() => answer(false)}>Decline</button>
        </section>
      )}
      {stream.error != null && <p role="alert">{String(stream.error)}</p>}

      <form onSubmit={send}>
        <input value={text} onChange={(event) => setText(event.target.value)} placeholder="Write a message" autoFocus />
        {stream.isLoading ? (
          <button type="button" onClick={() => void stream.stop()}>
            Stop
          </button>
        ) : (
          <button disabled={!text.trim()}>Send</button>
        )}
      </form>
    </main>
  );
}
