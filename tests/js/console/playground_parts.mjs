// What the playground's parts make of schemas, messages, questions and events, without a browser:
// `tests/unit/web/test_console_files.py` runs it.

import assert from "node:assert/strict";
import { suite, test } from "node:test";

globalThis.document = { documentElement: { dataset: {} } }; // which modules look at when they are loaded
const { placed, shownAs, subgraphsOf, visible } = await import("../../../web/static/console/parts/graph_layout.js");
const { areMessages, grown, normal, textOf, thoughtOf } = await import("../../../web/static/console/parts/messages.js");
const { answerOf, isDecided, requestOf } = await import("../../../web/static/console/parts/question_shapes.js");
const { addMessage, applyAll, beginRun, endSteps, runView, showState } = await import("../../../web/static/console/parts/run_view.js");
const { faultOf, initial, kindOf, missingIn } = await import("../../../web/static/console/parts/schema.js");

const ADDRESS = { $defs: { Address: { type: "object", properties: { street: { type: "string" }, no: { anyOf: [{ type: "integer" }, { type: "null" }], default: null } }, required: ["street"] } } };
const kind = (schema, root = schema) => kindOf(schema, root).kind;

const event = (name, data, id = "") => ({ id, event: name, data });
const began = (id, name, space = "") => event(`tasks${space}`, { id, name, input: {}, triggers: [] });
const done = (id, name, more = {}, space = "") => event(`tasks${space}`, { id, name, error: null, result: {}, interrupts: [], ...more });
const part = (id, content, task, space = "") => event(`messages${space}`, [{ type: "AIMessageChunk", id, content, chunk_position: null }, { langgraph_checkpoint_ns: task }]);
const shown = (view) => view.entries.value.map((entry) => textOf(entry.message.value));

suite("parts", () => {
  test("each schema has the field that can show it, and else JSON", () => {
    assert.deepEqual(["string", "number", "integer", "boolean"].map((type) => kind({ type })), ["string", "number", "integer", "boolean"]);
    assert.equal(kind({ enum: ["a", 1] }), "enum");
    assert.equal(kind({ anyOf: [{ const: "a" }, { const: "b" }] }), "enum");
    assert.equal(kind({ type: "array", items: { type: "string" } }), "array");
    assert.equal(kind({ type: "array", items: {} }), "json");
    assert.equal(kind({ type: "object", properties: { a: {} } }), "object");
    assert.equal(kind({ type: "object", additionalProperties: true }), "json");
    assert.equal(kind({ anyOf: [{ type: "string" }, { type: "integer" }] }), "json");
    assert.equal(kind({}), "json");
    const nullable = kindOf({ anyOf: [{ $ref: "#/$defs/Address" }, { type: "null" }], description: "Where." }, ADDRESS);
    assert.deepEqual([nullable.kind, nullable.nullable, nullable.schema.description], ["object", true, "Where."]);
    assert.deepEqual([kindOf({ type: ["string", "null"] }, {}).kind, kindOf({ type: ["string", "null"] }, {}).nullable], ["string", true]);
  });

  test("a schema that refers to itself ends", () => {
    const root = { $ref: "#/$defs/Node", $defs: { Node: { type: "object", properties: { next: { $ref: "#/$defs/Node" } }, required: ["next"] } } };
    assert.equal(typeof initial(root, root), "object");
    const loop = { $ref: "#/$defs/A", $defs: { A: { $ref: "#/$defs/A" } } };
    assert.equal(kind(loop), "json");
  });

  test("a new value has its defaults and what is required", () => {
    const schema = { ...ADDRESS, type: "object", required: ["name", "home"], properties: { name: { type: "string" }, age: { type: "integer", default: 3 }, note: { type: "string" }, home: { $ref: "#/$defs/Address" }, size: { enum: ["s", "l"] } } };
    assert.deepEqual(initial(schema, schema), { name: "", age: 3, home: { street: "", no: null } });
    assert.deepEqual(missingIn({ name: "a" }, schema), ["home"]);
    assert.match(faultOf(0, { minimum: 1 }), /1/);
    assert.equal(faultOf(1, { minimum: 1 }), "");
  });

  test("a message grows by its parts, in text, blocks, calls and tokens", () => {
    const chunk = (more) => ({ type: "AIMessageChunk", id: "1", content: "", ...more });
    const parts = [
      chunk({ content: [{ type: "thinking", thinking: "hm", index: 0 }] }),
      chunk({ content: [{ type: "thinking", thinking: "m", index: 0 }] }),
      chunk({ content: [{ type: "text", text: "a", index: 1 }], usage_metadata: { input_tokens: 3, output_tokens: 0, total_tokens: 3 } }),
      chunk({ content: [{ type: "text", text: "b", index: 1 }] }),
      chunk({ tool_call_chunks: [{ name: "find", args: '{"x', id: "c1", index: 2 }] }),
      chunk({ tool_call_chunks: [{ name: null, args: '": 1}', id: null, index: 2 }, { name: "task", args: "", id: "c2", index: 3 }] }),
      chunk({ chunk_position: "last", usage_metadata: { input_tokens: 0, output_tokens: 2, total_tokens: 2 } }),
    ];
    const whole = parts.reduce((message, each) => grown(message, each), null);
    assert.deepEqual([textOf(whole), thoughtOf(whole), whole.type, whole.growing], ["ab", "hmm", "ai", false]);
    assert.deepEqual(whole.tool_calls.map(({ name, args, id }) => ({ name, args, id })), [{ name: "find", args: { x: 1 }, id: "c1" }, { name: "task", args: "", id: "c2" }]);
    assert.equal(whole.usage_metadata.total_tokens, 5);
    assert.equal(normal({ role: "user", content: "a" }).type, "human");
    assert.equal(areMessages([{ role: "user", content: "" }]), true);
    assert.equal(areMessages(["a"]), false);
  });

  test("what the middleware asks is answered as it waits for it", () => {
    const request = requestOf({ id: "1", value: {
      action_requests: [{ name: "pay", args: { to: "Ada" }, description: "Pay?" }, { name: "write", args: {} }],
      review_configs: [{ action_name: "pay", allowed_decisions: ["approve", "edit"] }, { action_name: "write", allowed_decisions: ["reject", "respond"] }],
    } });
    assert.deepEqual(request.actions.map((action) => action.choices), [["accept", "edit"], ["reject", "respond"]]);
    const decisions = [{ choice: "edit", args: { to: "Bea" }, message: "" }, { choice: "reject", args: {}, message: "no" }];
    assert.deepEqual(answerOf(request, decisions), { decisions: [{ type: "edit", edited_action: { name: "pay", args: { to: "Bea" } } }, { type: "reject", message: "no" }] });
    assert.equal(isDecided({ choice: "respond", args: {}, message: " " }), false);
    const older = requestOf({ id: "1", value: { action_requests: [{ name: "pay", arguments: { to: 1 } }], review_configs: [] } });
    assert.deepEqual(answerOf(older, [{ choice: "edit", args: { to: 2 }, message: "" }]), { decisions: [{ type: "edit", edited_action: { name: "pay", arguments: { to: 2 } } }] });
  });

  test("the middleware of LangChain for JavaScript is answered in its own words", () => {
    const review = { actionName: "pay", allowedDecisions: ["approve", "edit"], argsSchema: { type: "object" } };
    const request = requestOf({ id: "1", value: { actionRequests: [{ name: "pay", args: { to: "Ada" }, description: "Pay?" }], reviewConfigs: [null, review] } });
    const [{ choices, schema, description }] = request.actions;
    assert.deepEqual([choices, schema, description], [["accept", "edit"], { type: "object" }, "Pay?"]);
    assert.deepEqual(answerOf(request, [{ choice: "edit", args: { to: "Bea" }, message: "" }]), { decisions: [{ type: "edit", editedAction: { name: "pay", args: { to: "Bea" } } }] });
  });

  test("of one call the answer's schema says what is allowed", () => {
    const branch = (type, more = {}) => ({ type: "object", properties: { type: { const: type }, ...more } });
    const args = { type: "object", properties: { to: { type: "string" } } };
    const schema = { oneOf: [branch("approve"), { $ref: "#/$defs/Edit" }], $defs: { Edit: branch("edit", { edited_action: { properties: { args: { $ref: "#/$defs/Args" } } } }), Args: args } };
    const value = { type: "tool_approval", tool_call_id: "c", name: "pay", args: { to: "Ada" }, description: "" };
    const request = requestOf({ id: "1", value, response_schema: schema });
    assert.deepEqual([request.actions[0].choices, request.actions[0].schema.properties], [["accept", "edit"], args.properties]);
    assert.deepEqual(answerOf(request, [{ choice: "accept", args: {}, message: "" }]), { type: "approve" });
    assert.equal(requestOf({ id: "1", value }).actions[0].choices.length, 4);
  });

  test("a letter of the inbox is answered with a list, and anything else is free", () => {
    const value = { action_request: { action: "pay", args: { to: 1 } }, config: { allow_accept: true, allow_ignore: true, allow_edit: false, allow_respond: false }, description: "d" };
    const request = requestOf({ id: "1", value: [value] });
    assert.deepEqual(request.actions[0].choices, ["accept", "ignore"]);
    assert.deepEqual(answerOf(request, [{ choice: "ignore", args: {}, message: "" }]), [{ type: "ignore", args: null }]);
    for (const free of ["Which?", { question: "?" }, [], [1], null, 5, { action_requests: [] }]) assert.equal(requestOf({ id: "1", value: free }), null);
    const forbidding = { ...value, config: { allow_accept: false } };
    for (const unanswerable of [forbidding, [value, forbidding], { action_request: 1, config: 1 }]) assert.equal(requestOf({ id: "1", value: unanswerable }), null);
  });

  test("a malformed request does not fail the page of all questions", () => {
    assert.equal(requestOf({ id: "1", value: { action_requests: [null] } }), null);
    const action = { name: "pay", args: {}, description: { text: "?" } };
    for (const reviews of [null, [null], [{ action_name: "pay", allowed_decisions: 5 }], [{ action_name: "pay", allowed_decisions: ["constructor", null] }]]) {
      const request = requestOf({ id: "1", value: { action_requests: [action], review_configs: reviews } });
      assert.deepEqual([request.actions[0].choices.length, request.actions[0].description], [4, ""]);
    }
  });

  test("closed subgraphs stand for what is in them", () => {
    const drawing = {
      nodes: ["__start__", "a", "sub:x", "sub:deep:y", "__end__"].map((id) => ({ id })),
      edges: [{ source: "__start__", target: "a" }, { source: "a", target: "sub:x", conditional: true, data: "yes" }, { source: "sub:x", target: "sub:deep:y" }, { source: "sub:deep:y", target: "__end__" }, { source: "a", target: "a", conditional: true }],
    };
    assert.deepEqual(subgraphsOf(drawing), ["sub", "sub:deep"]);
    assert.deepEqual([new Set(), new Set(["sub"]), new Set(["sub", "sub:deep"]), new Set(["sub:deep"])].map((open) => shownAs("sub:deep:y", open)), ["sub", "sub:deep", "sub:deep:y", "sub"]);
    assert.deepEqual(visible(drawing, new Set()).edges.map((edge) => `${edge.source} ${edge.target} ${edge.label}`), ["__start__ a ", "a sub yes", "sub __end__ ", "a a "]);
    const layout = placed(drawing, new Set(["sub"]));
    assert.deepEqual(layout.boxes.map((box) => box.id), ["sub"]);
    assert.deepEqual(layout.nodes.map((node) => `${node.id} ${node.kind}`).sort(), ["__end__ end", "__start__ start", "a node", "sub:deep subgraph", "sub:x node"]);
    for (const node of [...layout.nodes, ...layout.boxes]) assert.ok([node.x, node.y, node.width, node.height].every(Number.isFinite), node.id);
  });

  test("a state takes the place of what was streamed, and what only a model said goes", () => {
    const view = runView();
    addMessage(view, { type: "human", id: "h", content: "hi" });
    applyAll(view, [began("t1", "answer"), part("m1", "hel", "answer:t1"), part("m1", "lo", "answer:t1"), part("aside", "thinking", "answer:t1")]);
    assert.deepEqual(shown(view), ["hi", "hello", "thinking"]);
    const [human, answer] = view.entries.value;
    applyAll(view, [done("t1", "answer"), event("values", { messages: [{ type: "human", id: "h", content: "hi" }, { type: "ai", id: "m1", content: "hello" }] })]);
    assert.deepEqual(shown(view), ["hi", "hello"]);
    assert.equal(view.entries.value[0], human);
    assert.equal(view.entries.value[1], answer);
  });

  test("a message that did not change is not touched by the next state", () => {
    const view = runView();
    const messages = [{ type: "human", id: "h", content: "hi" }];
    applyAll(view, [event("values", { messages })]);
    const before = view.entries.value, message = before[0].message.value;
    applyAll(view, [event("values", { messages: structuredClone(messages) })]);
    assert.equal(view.entries.value, before);
    assert.equal(before[0].message.value, message);
  });

  test("subgraphs' steps are under their task, and light their place in the drawing", () => {
    const view = runView();
    applyAll(view, [began("t1", "child"), began("t2", "inner", "|child:t1"), began("t3", "last", "|child:t1|inner:t2"), event("custom|child:t1", { told: 1 })]);
    const [child] = view.items.value;
    assert.deepEqual(child.items.value.map((item) => item.kind), ["step", "told"]);
    assert.deepEqual([...view.lights.value.active], ["child", "child:inner", "child:inner:last"]);
    applyAll(view, [done("t3", "last", { error: "broken" }, "|child:t1|inner:t2"), done("t2", "inner", { interrupts: [{ id: "i", value: 1 }] }, "|child:t1")]);
    const { active, asking, failed } = view.lights.value;
    assert.deepEqual([[...active], [...asking], [...failed]], [["child"], ["child:inner"], ["child:inner:last"]]);
    endSteps(view, "stopped");
    assert.equal(child.status.value, "stopped");
  });

  test("a run of somebody else, told by its updates alone, has steps too", () => {
    const view = runView();
    applyAll(view, [event("updates", { one: { a: 1 } }), event("updates", { __interrupt__: [] }), event("updates", null)]);
    assert.deepEqual(view.items.value.map((step) => [step.name, step.status.value]), [["one", "done"]]);
    assert.deepEqual([...view.lights.value.done], ["one"]);
  });

  test("another attempt drops what the lost one was at", () => {
    const view = runView();
    applyAll(view, [event("metadata", { run_id: "r", attempt: 1 }), event("values", { messages: [{ type: "human", id: "h", content: "hi" }] }), began("t1", "answer"), part("m1", "half", "answer:t1")]);
    applyAll(view, [event("metadata", { run_id: "r", attempt: 2 })]);
    assert.deepEqual(shown(view), ["hi"]);
    assert.equal(view.items.value[0].status.value, "stopped");
  });

  test("steps are bounded, and a new run begins with none", () => {
    const view = runView();
    applyAll(view, Array.from({ length: 700 }, (_, at) => began(`t${at}`, "loop")));
    assert.deepEqual([view.items.value.length, view.dropped.value, view.steps.size], [500, 200, 500]);
    beginRun(view);
    assert.deepEqual([view.items.value.length, view.steps.size], [0, 0]);
  });

  test("a run that goes on keeps the steps, and the one that asked works again", () => {
    const view = runView();
    applyAll(view, [began("t1", "first"), done("t1", "first"), began("t2", "ask"), done("t2", "ask", { interrupts: [{ id: "q", value: "?" }] })]);
    beginRun(view, { goesOn: true });
    applyAll(view, [began("t2", "ask")]);
    assert.deepEqual(view.items.value.map((step) => [step.name, step.status.value]), [["first", "done"], ["ask", "working"]]);
    assert.deepEqual([[...view.lights.value.active], [...view.lights.value.done], [...view.lights.value.asking]], [["ask"], ["first"], []]);
  });

  test("questions of a state keep the schema that the stream told", () => {
    const view = runView();
    applyAll(view, [event("values", { a: 1, __interrupt__: [{ id: "q", value: "?", response_schema: { type: "string" } }] })]);
    assert.deepEqual(view.values.value, { a: 1 });
    showState(view, { values: { a: 1 }, next: ["ask"], tasks: [{ name: "ask", interrupts: [{ id: "q", value: "?" }] }] });
    assert.deepEqual(view.questions.value, [{ id: "q", value: "?", task: "ask", response_schema: { type: "string" } }]);
    assert.deepEqual(view.next.value, ["ask"]);
  });
});
