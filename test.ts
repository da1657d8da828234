// Drives hello-ext over pipes as SynapsCLI does: with the command of plugin.json, the runtime's
// environment and its working directory. The framing is written here once more, to test it.
//
// In a copy, make yours what is about hello and the guard: "The tutorial's Step 8", "The tool
// hello", "The guard's rule", and in the README what the last two tests look at. The rest holds for
// any extension. A hook that writes to stderr says so in its step of Step 8.

import assert from "node:assert/strict";
import { spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import {
  cpSync, existsSync, mkdtempSync, readFileSync, rmSync, symlinkSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, it, type TestContext } from "node:test";
import { setTimeout as delay } from "node:timers/promises";
import { fileURLToPath } from "node:url";

// ---- Harness ------------------------------------------------------------------------------------

const root = fileURLToPath(new URL(".", import.meta.url));
const read = (file: string) => readFileSync(join(root, file), "utf8");
const { extension: manifest, ...plugin } = JSON.parse(read(".synaps-plugin/plugin.json"));

// What starts the extension: the variable LAUNCHER ("deno run hello-ext.ts"), else the manifest's
// command, in which `node` is the Node that runs the tests.
const main = "hello-ext.ts";
const launcher = process.env.LAUNCHER?.split(" ");
const command = launcher ?? [process.execPath, ...manifest.args];
const [program = ""] = command;
if (launcher) console.log(`The extension is started by ${command.join(" ")}`);
const isNode = program === process.execPath || /\bnode$/.test(program);
const isDeno = program.endsWith("deno"); // it does not end by itself while its stdin is open
const prefix = `[${plugin.name}]`;

const home = mkdtempSync(join(tmpdir(), "home-")); // fresh, so that a tool may store something
after(() => rmSync(home, { recursive: true }));
const { PATH, LANG, TERM, XDG_RUNTIME_DIR } = process.env;
const env = { PATH, HOME: home, LANG, TERM, XDG_RUNTIME_DIR }; // all that the runtime passes on

type Message = Record<string, unknown>;
type Owner = { after(fn: () => void): void };

const frame = (body: string) => `Content-Length: ${Buffer.byteLength(body)}\r\n\r\n${body}`;
const framed = (message: unknown) => frame(JSON.stringify(message));

async function* unframed(stream: AsyncIterable<Buffer>): AsyncGenerator<Message> {
  let rest = Buffer.alloc(0);
  for await (const chunk of stream) {
    rest = Buffer.concat([rest, chunk]);
    for (let end; (end = rest.indexOf("\r\n\r\n")) >= 0; ) {
      const [, digits] = /^Content-Length: (\d+)$/.exec(rest.toString("latin1", 0, end)) ?? [];
      assert(digits, `no header: ${rest.toString("latin1", 0, end)}`);
      const stop = end + 4 + Number(digits);
      if (rest.length < stop) break;
      yield JSON.parse(rest.toString("utf8", end + 4, stop));
      rest = rest.subarray(stop);
    }
  }
  assert.equal(rest.toString("latin1"), "", "stdout ends with bytes that are no frame");
}

/** Starts the extension, or a variant of it; its owner's end kills it if it still runs then. */
function start(owner: Owner, cwd = root, line = command) {
  const [program = "", ...args] = line;
  const child = spawn(program, args, { cwd, env });
  const closed = once(child, "close");
  const replies = unframed(child.stdout);
  let stderr = "";
  child.stderr.setEncoding("utf8").on("data", (text) => (stderr += text));
  child.stdin.on("error", () => {}); // it may end before it has read everything
  owner.after(() => child.kill("SIGKILL"));

  /** Writes messages in one chunk; a string goes as it is. */
  const send = (...messages: unknown[]) => {
    child.stdin.write(messages.map((m) => (typeof m === "string" ? m : framed(m))).join(""));
  };
  /** The next reply. Rejects when the extension has ended; a hang ends with the test's time. */
  const receive = async (): Promise<Message> => {
    const { done, value } = await replies.next();
    return done ? assert.fail(`the extension has ended: ${stderr}`) : value;
  };
  const ask = (message: unknown) => {
    send(message);
    return receive();
  };
  /** Waits until it has ended by itself; gives its exit code, stderr and last replies. */
  const ended = async () => {
    if (isDeno) child.stdin.end();
    const rest: Message[] = [];
    for await (const reply of replies) rest.push(reply);
    const [code, signal] = await closed;
    return { code, signal, stderr, replies: rest };
  };
  /** Ends its input first. */
  const end = () => {
    child.stdin.end();
    return ended();
  };
  const said = () => lines(stderr);
  return { child, send, receive, ask, ended, end, said };
}

/** A copy of the folder, as a clone is: without what npm installs. */
function copy(owner: Owner, name = "copy"): string {
  const folder = mkdtempSync(join(tmpdir(), "hello-ext-"));
  owner.after(() => rmSync(folder, { recursive: true, force: true }));
  const filter = (path: string) => !/[\\/](?:node_modules|\.git)$/.test(path);
  cpSync(root, join(folder, name), { recursive: true, filter });
  return join(folder, name);
}

/** A copy of the folder, with its packages, in which some code stands in place of other. */
function variant(owner: Owner, from: string, to: string): string {
  const folder = copy(owner);
  const packages = join(root, "node_modules");
  if (existsSync(packages)) symlinkSync(packages, join(folder, "node_modules"));
  const [head, tail, ...more] = read(main).split(from);
  assert(tail !== undefined && more.length === 0, `${from} has to be there once`);
  writeFileSync(join(folder, main), head + to + tail);
  return folder;
}

const test = (name: string, fn: (t: TestContext) => Promise<void> | void) =>
  it(name, { timeout: 30_000 }, fn);

const lines = (text: string) => text.split("\n").slice(0, -1);
const members = (value: unknown): Message => Object(value);

// A request that any extension answers, and its reply: with it a test shows that serving goes on.
const probe = { jsonrpc: "2.0", id: "probe", method: "no.such.method" };
const probed = { jsonrpc: "2.0", id: "probe", result: {} };

/** What SynapsCLI 0.11.1 sends with hook.handle: every field, null where it has nothing to say. */
const event = (tool_name: unknown, tool_input: unknown, kind = "before_tool_call") => ({
  kind, tool_name, tool_runtime_name: tool_name, tool_input, tool_output: null, message: null,
  session_id: null, transcript: null, data: null,
});
/** And what the guide shows. */
const guide = (context: unknown, hook = "before_tool_call") => ({ hook, context });

const request = (method: string, params?: unknown) => ({ jsonrpc: "2.0", id: 1, method, params });
const call = (name: unknown, input: unknown) =>
  request("tool.call", { name, input, session_id: null });
const hook = (params: unknown) => request("hook.handle", params);
const response = (result: unknown) => ({ jsonrpc: "2.0", id: 1, result });
/** The result of a tool call: the runtime reads content, the guide output. */
const told = (text: string) => ({ content: text, output: text });
const goOn = { action: "continue" };
const ls = { command: "ls -la" };

// ---- The tutorial's Step 8 ----------------------------------------------------------------------

const info = {
  name: plugin.name,
  version: plugin.version,
  protocol_version: 1,
  capabilities: {
    tools: [{
      name: "hello",
      description: "Greet someone by name",
      input_schema: {
        type: "object",
        properties: { name: { type: "string" } },
        required: ["name"],
      },
    }],
    hooks: [{ name: "before_tool_call" }],
  },
};
const [ada, world] = [told("Hello, Ada!"), told("Hello, world!")];
const rm = { command: "rm -rf /home/me" };
const blocked = {
  action: "block",
  reason: 'rm -r of "/home/me": name literal paths below /tmp, or ask the user to run it',
};

type Step = [name: string, method: string, params: unknown, result: unknown, said?: string];

function conversation(name: string, steps: Step[]) {
  describe(name, () => {
    const endings: (() => void)[] = [];
    let extension: ReturnType<typeof start>;
    before(() => (extension = start({ after: (fn) => endings.push(fn) })));
    after(() => endings.forEach((fn) => fn()));
    for (const [id, [name, method, params, result]] of steps.entries()) {
      test(`answers ${name}`, async () => {
        const reply = await extension.ask({ jsonrpc: "2.0", id, method, params });
        assert.deepEqual(reply, { jsonrpc: "2.0", id, result });
      });
    }
    test("then ends by itself with exit code 0", async () => {
      const { code, replies } = await extension.ended();
      assert.deepEqual({ code, replies }, { code: 0, replies: [] });
    });
    test("has written to stderr what its steps say, and nothing else", () => {
      const said = steps.flatMap(([, , , , text]) => (text ? `${prefix} ${text}` : []));
      assert.deepEqual(extension.said(), said);
    });
  });
}

conversation("Step 8 in the words of the guide", [
  ["initialize", "initialize", {}, info],
  ["a tool call", "tool.call", { name: "hello", input: { name: "Ada" } }, ada],
  ["a tool call without a name", "tool.call", { name: "hello", input: {} }, world],
  ["a hook: go on", "hook.handle", guide({ tool_name: "bash", tool_input: ls }), {}],
  ["a hook: block", "hook.handle", guide({ tool_name: "bash", tool_input: rm }), blocked],
  ["a hook with other names", "hook.handle", guide({ tool: "bash", input: rm }), blocked],
  ["a hook without a tool, as bash", "hook.handle", guide({ tool_name: null, input: rm }), blocked],
  ["a hook with both names: go on", "hook.handle",
    guide({ tool_name: "bash", tool: "write", tool_input: ls, input: rm }), {}],
  ["a hook with both names: block", "hook.handle",
    guide({ tool_name: "bash", tool: "write", tool_input: rm, input: ls }), blocked],
  ["a hook about another tool", "hook.handle", guide({ tool: "write", input: rm }), {}],
  ["a hook with nothing in it", "hook.handle", guide({}), {}],
  ["another hook", "hook.handle", guide({ tool_input: rm }, "after_tool_call"), {}],
  ["an unknown method", "no.such.method", {}, {}, 'unknown method "no.such.method"'],
  ["shutdown", "shutdown", {}, {}],
]);

conversation("Step 8 as SynapsCLI 0.11 sends it", [
  ["initialize", "initialize", {
    synaps_version: "0.11.1", extension_protocol_version: 1, plugin_id: plugin.name,
    plugin_root: root, config: {},
  }, info],
  ["info.get", "info.get", null, {}, 'unknown method "info.get"'],
  ["a tool call", "tool.call", { name: "hello", input: { name: "Ada" }, session_id: null }, ada],
  ["a hook: go on", "hook.handle", event("bash", ls), goOn],
  ["a hook: block", "hook.handle", event("bash", rm), blocked],
  ["another hook", "hook.handle", event("bash", rm, "after_tool_call"), goOn],
  ["a hook of a later runtime", "hook.handle", event("bash", rm, "constructor"), goOn],
  ["shutdown", "shutdown", null, {}],
]);

// ---- Framing ------------------------------------------------------------------------------------

describe("framing", () => {
  test("answers in exactly these bytes", async (t) => {
    const { child, send } = start(t);
    send({ ...probe, id: "ü" }, { jsonrpc: "2.0", id: 2, method: "shutdown" });
    child.stdin.end();
    const chunks: Buffer[] = await child.stdout.toArray();
    assert.equal(
      Buffer.concat(chunks).toString("latin1"),
      'Content-Length: 39\r\n\r\n{"jsonrpc":"2.0","id":"Ã¼","result":{}}' +
        'Content-Length: 36\r\n\r\n{"jsonrpc":"2.0","id":2,"result":{}}',
    );
  });

  test("counts bytes, not characters", async (t) => {
    const { ask } = start(t);
    for (const id of ["Zoë", "漢字", "👋", "\u2028"]) {
      assert.deepEqual(await ask({ ...probe, id }), { ...probed, id });
    }
  });

  test("reads a message that comes byte by byte", async (t) => {
    const { child, receive } = start(t);
    for (const byte of Buffer.from(framed({ ...probe, id: "Zoë 👋" }) + framed(probe))) {
      await new Promise((resolve) => child.stdin.write(Buffer.of(byte), resolve));
    }
    assert.deepEqual(await receive(), { ...probed, id: "Zoë 👋" });
    assert.deepEqual(await receive(), probed);
  });

  test("reads a message in two chunks, wherever it is cut", async (t) => {
    const { child, receive } = start(t);
    const bytes = Buffer.from(framed({ ...probe, id: "👋" }));
    for (let cut = 1; cut < bytes.length; cut++) {
      child.stdin.write(Buffer.concat([Buffer.from(framed(probe)), bytes.subarray(0, cut)]));
      assert.deepEqual(await receive(), probed); // so the first part has been read on its own
      child.stdin.write(bytes.subarray(cut));
      assert.deepEqual(await receive(), { ...probed, id: "👋" });
    }
  });

  const body = JSON.stringify(probe);
  const header = `Content-Length: ${body.length}`;
  for (const [name, text] of [
    ["a header in lower case, without a space", `content-length:${body.length}\r\n\r\n`],
    ["a header in upper case, with more spaces", `CONTENT-LENGTH:   ${body.length} \r\n\r\n`],
    ["other headers before and after it", `A: b\r\n${header}\r\nContent-Type: c; d=e\r\n\r\n`],
    ["\\n in place of \\r\\n", `${header}\n\n`],
    ["blank lines before it", `\r\n\n\r\n${header}\r\n\r\n`],
    ["a blank before the colon, and a tab", `Content-Length\t :\t${body.length}\t\r\n\r\n`],
    ["leading zeros", `Content-Length: 000${body.length}\r\n\r\n`],
    ["the same length twice", `${header}\r\nContent-Length: 0${body.length}\r\n\r\n`],
    ["a header of 8 KiB", `A: ${"b".repeat(8192 - header.length - 9)}\r\n${header}\r\n\r\n`],
  ] as const) {
    test(`reads a message with ${name}`, async (t) => {
      const { ask } = start(t);
      assert.deepEqual(await ask(text + body), probed);
      assert.deepEqual(await ask(probe), probed);
    });
  }

  test("reads a message of 64 MiB", async (t) => {
    const { ask } = start(t);
    const length = 2 ** 26 - JSON.stringify({ ...probe, params: "" }).length;
    assert.deepEqual(await ask({ ...probe, params: "a".repeat(length) }), probed);
  });

  test("answers thousands of messages from one chunk, each once and in order", async (t) => {
    const { send, end } = start(t);
    const ids = Array.from({ length: 5000 }, (_, id) => id);
    send(...ids.map((id) => ({ ...probe, id })));
    const { replies, code } = await end();
    assert.deepEqual(replies, ids.map((id) => ({ ...probed, id })));
    assert.equal(code, 0);
  });

  test("waits for a slow reader instead of buffering without end", async (t) => {
    const { ask, send, end, said } = start(t);
    await ask(probe); // it runs, and from now on nothing is read
    send(framed({ ...probe, id: "i".repeat(1000) }).repeat(8000));
    let seen: number;
    do [seen] = [said().length, await delay(500)]; while (said().length > seen); // until it rests
    assert.ok(seen < 8000, "it answered all of them");
    const { replies } = await end();
    assert.equal(replies.length, 8000);
  });

  for (const [name, text, complaint] of [
    ["no Content-Length", "X-Other: 1\r\n\r\n", /Content-Length/],
    ["Content-Length in another header", "X: Content-Length: 5\r\n\r\n", /Content-Length/],
    ["Content-Length after a lone \\r", "X: a\rContent-Length: 5\r\n\r\n", /Content-Length/],
    ["two lengths", "Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}", /no one Content-Length/],
    ["no value", "Content-Length:\r\n\r\n", /Content-Length/],
    ["a word", "Content-Length: abc\r\n\r\n", /Content-Length.*abc/],
    ["digits and a word", "Content-Length: 24abc\r\n\r\n", /Content-Length.*24abc/],
    ["a minus", "Content-Length: -1\r\n\r\n", /Content-Length.*-1/],
    ["a plus", "Content-Length: +2\r\n\r\n{}", /Content-Length.*\+2/],
    ["a fraction", "Content-Length: 2.0\r\n\r\n{}", /Content-Length.*2\.0/],
    ["an exponent", "Content-Length: 1e3\r\n\r\n", /Content-Length.*1e3/],
    ["hexadecimal", "Content-Length: 0x10\r\n\r\n", /Content-Length.*0x10/],
    ["over 64 MiB", `Content-Length: ${2 ** 26 + 1}\r\n\r\n`, /Content-Length.*64 MiB/],
    ["400 digits", `Content-Length: ${"9".repeat(400)}\r\n\r\n`, /Content-Length.*64 MiB/],
    ["an endless line", "a".repeat(2 ** 20), /header.*8 KiB/],
    ["one byte over 8 KiB", `A: ${"b".repeat(8192 - 4)}\n\n`, /header.*8 KiB/],
    ["many lines over 8 KiB", `${"A: b\n".repeat(1700)}${header}\n\n${body}`, /header.*8 KiB/],
  ] as const) {
    test(`ends at once with one line and exit code 1 after ${name}`, async (t) => {
      const { send, ended } = start(t);
      send(probe, text, probe);
      const { code, stderr, replies } = await ended(); // its input is still open
      assert.deepEqual({ code, replies }, { code: 1, replies: [probed] });
      assert.match(lines(stderr)[1] ?? "", complaint); // the first is about the probe
      assert.equal(lines(stderr).length, 2);
    });
  }
});

// ---- JSON-RPC -----------------------------------------------------------------------------------

describe("json-rpc", () => {
  for (const [name, message, id, code] of [
    ["a body that is no JSON", frame("invalid message"), null, -32700],
    ["an empty body", frame(""), null, -32700],
    ["a body with a byte order mark", frame("\ufeff{}"), null, -32700],
    ["a body that is no UTF-8", Buffer.from('Content-Length: 3\n\n"\xff"', "latin1"), null, -32700],
    ["a batch", [probe], null, -32600],
    ["a number", 42, null, -32600],
    ["null", null, null, -32600],
    ["a string", frame('"x"'), null, -32600],
    ["an object without a method", { id: 1 }, 1, -32600],
    ["an object with nothing", {}, null, -32600],
    ["a method that is no string", { id: 4, method: 7 }, 4, -32600],
    ["a method that is null", { id: 4, method: null, result: 1 }, 4, -32600],
    ["an id that is an array", { id: [1], method: "tool.call" }, null, -32600],
    ["an id that is an object", { id: {}, method: "tool.call" }, null, -32600],
    ["an id that is a boolean", { id: false, method: "tool.call" }, null, -32600],
    ["an id that is changed by reading it", frame('{"id":9007199254740993,"method":"a"}'), null,
      -32600],
    ["an id that is too large", frame('{"id":1e999,"method":"a"}'), null, -32600],
    ["an id too long for a reply", { id: "i".repeat(1025), method: "initialize" }, null, -32600],
    ["an unknown tool", call("nope", {}), 1, -32602],
    ["a tool with a name of Object.prototype", call("constructor", {}), 1, -32602],
    ["a tool call without params", { id: 1, method: "tool.call" }, 1, -32602],
    ["params that are null", { id: 1, method: "tool.call", params: null }, 1, -32602],
  ] as const) {
    test(`answers ${name} with ${code}, and serves on`, async (t) => {
      const { child, ask, receive } = start(t);
      if (Buffer.isBuffer(message)) child.stdin.write(message);
      const reply = await (Buffer.isBuffer(message) ? receive() : ask(message));
      const { message: text, ...error } = members(reply.error);
      assert.deepEqual({ ...reply, error }, { jsonrpc: "2.0", id, error: { code } });
      assert.match(String(text), /./);
      assert.deepEqual(await ask(probe), probed);
    });
  }

  for (const [name, message] of [
    ["a response", { jsonrpc: "2.0", id: 5, result: {} }],
    ["an error response", { jsonrpc: "2.0", id: 5, error: { code: 1, message: "" } }],
    ["a notification", { jsonrpc: "2.0", method: "$/cancelRequest", params: { id: 1 } }],
    ["a notification of a request's method", { jsonrpc: "2.0", method: "initialize" }],
    ["a notification that fails", { jsonrpc: "2.0", method: "tool.call", params: { name: "x" } }],
    ["a hook's notification", { jsonrpc: "2.0", method: "hook.handle", params: event("bash", ls) }],
  ] as const) {
    test(`does not answer ${name}`, async (t) => {
      const { ask, end } = start(t);
      assert.deepEqual(await ask([message, probe].map(framed).join("")), probed);
      assert.deepEqual((await end()).replies, []);
    });
  }

  test("answers with the id as it came", async (t) => {
    const { ask } = start(t);
    for (const id of [0, "", null, -1, 1.5, "0", Number.MAX_SAFE_INTEGER, "i".repeat(1024)]) {
      assert.deepEqual(await ask({ ...probe, id }), { ...probed, id });
    }
  });

  test("does without the member jsonrpc", async (t) => {
    const { ask } = start(t);
    assert.deepEqual(await ask({ id: 1, method: "no.such.method" }), { ...probed, id: 1 });
  });

  test("takes no member of Object.prototype for a method, and says what is unknown", async (t) => {
    const { ask, end } = start(t);
    for (const method of ["constructor", "__proto__", "toString", "", "a\nb"]) {
      assert.deepEqual(await ask({ ...probe, method }), probed);
    }
    assert.deepEqual(lines((await end()).stderr), [
      `${prefix} unknown method "constructor"`,
      `${prefix} unknown method "__proto__"`,
      `${prefix} unknown method "toString"`,
      `${prefix} unknown method ""`,
      `${prefix} unknown method "a\\nb"`,
    ]);
  });

  test("writes half a surrogate pair as U+FFFD, and nothing else", async (t) => {
    const { ask } = start(t);
    for (const [id, whole] of [
      ["a\ud83d", "a\ufffd"],
      ["\udc4b\ud83d", "\ufffd\ufffd"],
      ["👋\ud83d👋", "👋\ufffd👋"],
      ["\\ud83d", "\\ud83d"],
      ["\\\ud83d", "\\\ufffd"],
      ["\\\\ud83d\u001f", "\\\\ud83d\u001f"],
    ]) {
      assert.deepEqual(await ask({ ...probe, id }), { ...probed, id: whole });
    }
  });
});

// ---- The tool hello -----------------------------------------------------------------------------

describe("the tool hello", () => {
  test("greets by any name that is a string, and the world without one", async (t) => {
    const { ask } = start(t);
    for (const [input, text] of [
      [{ name: "Ada" }, "Hello, Ada!"],
      [{ name: "Ada", more: 1 }, "Hello, Ada!"],
      [{ name: "Zoë 👋 漢" }, "Hello, Zoë 👋 漢!"],
      [{ name: "" }, "Hello, !"],
      [{ name: null }, "Hello, world!"],
      [{}, "Hello, world!"],
      [null, "Hello, world!"],
      [undefined, "Hello, world!"],
    ] as const) {
      assert.deepEqual(await ask(call("hello", input)), response(told(text)));
    }
  });

  test("refuses wrong input with -32602 and says what was wrong", async (t) => {
    const { ask, end } = start(t);
    for (const [input, message] of [
      [{ name: 42 }, "name is number, not a string"],
      [{ name: ["a"] }, "name is object, not a string"],
      [{ name: { toString: "x" } }, "name is object, not a string"],
      [[1], "input is no object"],
      ["Ada", "input is no object"],
      [false, "input is no object"],
    ] as const) {
      const reply = await ask(call("hello", input));
      assert.deepEqual(reply, { jsonrpc: "2.0", id: 1, error: { code: -32602, message } });
    }
    assert.deepEqual(await ask(call("hello", { name: "Ada" })), response(told("Hello, Ada!")));
    assert.equal((await end()).stderr, "");
  });
});

// ---- A tool, whatever it does -------------------------------------------------------------------

describe("a tool", () => {
  const from = "tools.find((tool) => tool.name === name)";
  /** Starts the extension with one tool, of any name, that runs some code. */
  const startWith = (t: TestContext, code: string) =>
    start(t, variant(t, from, `{ call: (input) => {${code}} }`));
  const callIt = (input: object = {}) => call("any", input);

  for (const [name, code, message] of [
    ["throws", 'throw new Error("no\\r\\nluck\\n\\rtoday");', "no\r\nluck\n\rtoday"],
    ["throws at length", 'throw new Error("long".repeat(1e6));', "long".repeat(50)],
    ["rejects", 'return Promise.reject(new Error("no luck"));', "no luck"],
    ["throws what is no error", "throw null;", "object"],
    ["throws a number for a message", "throw Object.assign(new Error(), { message: 42 });", "42"],
    ["gives what is no JSON", 'return { toJSON() { throw new Error("no JSON"); } };', "no JSON"],
  ] as const) {
    test(`that ${name} is answered with -32603 and one line on stderr`, async (t) => {
      const { ask, end } = startWith(t, code);
      const reply = await ask(callIt());
      assert.deepEqual(reply, { jsonrpc: "2.0", id: 1, error: { code: -32603, message } });
      assert.deepEqual(await ask(probe), probed);
      const line = `${prefix} tool.call failed: ${message.replace(/\r\n|\n\r/g, " ")}`;
      const said = lines((await end()).stderr);
      assert.deepEqual(said, [line, `${prefix} unknown method "no.such.method"`]);
    });
  }

  test("gets its reply through up to 4 MiB, and -32603 beyond", async (t) => {
    const { ask, end } = startWith(t, "return input.text;");
    const rest = JSON.stringify(response(told("")));
    const text = "a".repeat((2 ** 22 - rest.length) / 2);
    assert.deepEqual(await ask(callIt({ text })), response(told(text)));
    const message = "a reply of 4194305 bytes is over 4 MiB";
    const { error } = await ask({ ...callIt({ text }), id: 10 }); // one digit more
    assert.deepEqual(error, { code: -32603, message });
    assert.deepEqual(await ask(probe), probed);
    // 2 MiB of characters, 6 MiB of bytes; and far too much
    for (const large of ["漢".repeat(2 ** 20), "a\n".repeat(2 ** 24)]) {
      assert.equal(members((await ask(callIt({ text: large }))).error).code, -32603);
    }
    assert.deepEqual(await ask(probe), probed);
    assert.equal(lines((await end()).stderr)[0], `${prefix} tool.call failed: ${message}`);
  });

  const slowly = "return new Promise((done) => setTimeout(done, input.ms, input.text));";
  const never = "return new Promise(() => {});";
  test("may take its time: other replies do not wait, its own still comes, with its id", async (t) => {
    const { send, receive, ask } = startWith(t, slowly);
    send({ ...callIt({ ms: 300, text: "slow" }), id: "slow" });
    assert.deepEqual(await ask(hook(event("bash", ls))), response(goOn));
    assert.deepEqual(await ask(callIt({ ms: 0, text: "fast" })), response(told("fast")));
    assert.deepEqual(await receive(), { jsonrpc: "2.0", id: "slow", result: told("slow") });
  });

  test("that settles at once is answered in the order of the requests", async (t) => {
    const { send, end } = startWith(t, "return Promise.resolve().then(() => input.text);");
    const ids = Array.from({ length: 50 }, (_, id) => id);
    const asked = ids.map((id) => (id % 3 ? { ...callIt({ text: "" }), id } : { ...probe, id }));
    send(...asked, frame("no JSON"), { ...probe, id: "last" });
    const { replies } = await end();
    assert.deepEqual(replies.map(({ id }) => id), [...ids, null, "last"]);
  });

  test("may take its time: the end of the input waits", async (t) => {
    const { send, end } = startWith(t, slowly);
    send(callIt({ ms: 200, text: "slow" }));
    const { code, replies } = await end();
    assert.deepEqual({ code, replies }, { code: 0, replies: [response(told("slow"))] });
  });

  test("that never answers does not switch the hook off, nor end with exit code 0", async (t) => {
    const { send, ask, end } = startWith(t, never);
    send(callIt());
    assert.deepEqual(await ask(hook(event("bash", rm))), response(blocked));
    assert.deepEqual(await end(), { code: 1, signal: null, stderr: "", replies: [] });
  });

  for (const [how, code] of [["shutdown", 0], ["the end of the input", 0]] as const) {
    test(`that leaves a timer behind: the process is gone 5 s after ${how}`, async (t) => {
      const { ask, send, end, ended } = startWith(t, "setInterval(() => {}, 1000); return '';");
      await ask(callIt());
      const since = performance.now();
      if (how === "shutdown") send(request("shutdown"));
      const result = await (how === "shutdown" ? ended() : end());
      assert.equal(result.code, code);
      assert.equal(result.replies.length, how === "shutdown" ? 1 : 0);
      assert.ok(performance.now() - since < 8000);
    });
  }

  test("that answers after shutdown is not heard, and the exit code is 1", async (t) => {
    const { send, ended } = startWith(t, slowly);
    send(callIt({ ms: 200, text: "slow" }), { ...request("shutdown"), id: 2 });
    const { code, replies } = await ended();
    assert.deepEqual({ code, replies }, { code: 1, replies: [{ ...response({}), id: 2 }] });
  });

  test("may write to stdout: it goes to stderr, before and after its reply", async (t) => {
    const late = 'setTimeout(() => process.stdout.write("late\\n"));';
    const writes = 'process.stdout.write("early\\n");' + late;
    const { ask, end } = startWith(t, `${writes} return "done";`);
    assert.deepEqual(await ask(callIt()), response(told("done")));
    assert.equal((await end()).stderr, "early\nlate\n");
  });

  const noConsole = !isNode && "its console writes past process.stdout";
  it("may use console: all of it goes to stderr", { skip: noConsole }, async (t) => {
    const chatter = 'console.log("log"); console.info("info"); console.dir({ dir: 1 });';
    const { ask, end } = startWith(t, `${chatter} console.table([1]); return "done";`);
    assert.deepEqual(await ask(callIt()), response(told("done")));
    const { stderr } = await end();
    for (const word of ["log", "info", "dir: 1", "(index)"]) assert.ok(stderr.includes(word), word);
  });
});

// ---- The hook, whatever it does -----------------------------------------------------------------

describe("hook", () => {
  const from = 'hooks.get(event?.kind ?? "")'; // its handler, whatever the hook
  for (const [name, code, reason] of [
    ["throws", 'throw new Error("no luck");', /^no luck$/],
    ["throws what a tool may throw", 'throw new InvalidInput("no luck");', /^no luck$/],
    ["rejects", 'return Promise.reject("no luck");', /^"no luck"$/],
    ["rejects with nothing", "return Promise.reject();", /^undefined$/],
    ["answers too much", 'return { action: "block", reason: "r".repeat(2 ** 22) };', /^a reply of/],
    ["answers nothing", "return JSON.parse('[]')[0];", /undefined/], // in the engine's own words
  ] as const) {
    test(`that ${name} blocks a tool call and lets all else go on`, async (t) => {
      const { ask, end } = start(t, variant(t, from, `(() => { ${code} })`));
      const { result } = await ask(hook(event("bash", ls)));
      const { action, reason: given } = members(result);
      assert.equal(action, "block");
      assert.match(String(given), reason);
      assert.deepEqual(await ask(hook(guide({ tool_input: ls }))), response(result));
      const later = event("bash", ls, "after_tool_call");
      assert.deepEqual(await ask(hook(later)), response(goOn));
      assert.deepEqual(await ask(hook(guide({ tool_input: ls }, "on_session_end"))), response({}));
      const said = lines((await end()).stderr);
      assert.deepEqual(said, Array(4).fill(`${prefix} hook.handle failed: ${given}`));
    });
  }

  test("may take its time, and answer with any action", async (t) => {
    const slowly = `() => new Promise<HookResult>((done) => setTimeout(() =>
      done({ action: "modify", input: { command: "true" } }), 20))`;
    const { ask } = start(t, variant(t, from, slowly));
    const modify = { action: "modify", input: { command: "true" } };
    assert.deepEqual(await ask(hook(event("bash", ls))), response(modify));
    assert.deepEqual(await ask(hook(guide({ tool_input: ls }))), response(modify));
  });

  test("gets every field of an event, from the guide's words too", async (t) => {
    const told = '(event: HookEvent) => ({ action: "block", reason: JSON.stringify(event) } as const)';
    const { ask } = start(t, variant(t, from, told));
    const context = { tool: "bash", input: ls, message: "hi", kind: "x" };
    for (const [params, given] of [
      [event("bash", ls), event("bash", ls)],
      [guide(context), { kind: "before_tool_call", tool_name: "bash", tool_input: ls, message: "hi" }],
    ]) {
      const { reason } = members((await ask(hook(params))).result);
      assert.deepEqual(JSON.parse(String(reason)), given);
    }
  });

  test("is answered with a result whatever its params are", async (t) => {
    const { ask, end } = start(t);
    for (const params of [undefined, null, [], "x", 1, { kind: 1 }, { hook: {} }, { context: 1 }]) {
      assert.deepEqual(await ask(hook(params)), response({}));
    }
    assert.equal((await end()).stderr, "");
  });
});

// ---- The guard: goes out in one piece -----------------------------------------------------------

describe("guard", () => {
  /** Asks about all of the texts; fails with those for which the answer is another action. */
  const answers = (wanted: string, name: string, texts: string[], tool = "bash") =>
    test(`${wanted}: ${name}`, async (t) => {
      const { send, end } = start(t);
      const field = tool === "shell_send" ? "input" : "command";
      send(...texts.map((text) => hook(event(tool, { [field]: text }))));
      const { replies } = await end();
      assert.equal(replies.length, texts.length);
      const actions = replies.map(({ result }) => members(result).action);
      assert.deepEqual(texts.filter((_, i) => actions[i] !== wanted), []);
    });

  answers("continue", "no recursive rm in it", [
    "rm x", "rm -f x", "rm --force x", "rm my-draft.md pre-refactor", "rmdir -r x", "ls -la", "", " ",
    "docker run --rm -r x", "./storm -rf /x", 'rm "$f"', "rm $f", "alarm -r x", "find . -name rm",
    "cp -r rm x", "rm -f a b; ls -R", "rm a && cp -r b c", "rm a\nls -R", "npm run rm-dist",
    "for f in *.txt; do rm \"$f\"; done", "find . -exec rm {} + -print", 'bash -c "$CMD"',
    "echo 'open quote", "rm x | sort -r", "rm x & ls -R", "echo a#b",
  ]);
  answers("continue", "git's rm", [
    "git rm -r x", "git ls-files -z | xargs -0 git rm -r --cached", "sudo git rm -r x",
    "cd x && git rm -rf y", "for f in a; do git rm -r $f; done", "(git rm -r x)",
  ]);
  answers("continue", "plain text that names literal paths below /tmp", [
    "rm -rf /tmp/a", "rm -r //tmp///a", "rm -rf /tmp/./a/", "rm -rf /tmp/a/../b",
    "rm -rf /tmp/../tmp/a", "rm -rf /tmp/a 2>/dev/null || true", "rm -r /tmp/a > /tmp/log 2>&1; ls",
    "rm -rf /tmp/a&&ls", "rm -rf -- /tmp/a", "rm -rf /tmp/... /tmp/..a /tmp/b,c", "/bin/rm -r /tmp/a",
    "rm /tmp/a -fR", "rm --recursive /tmp/a &>log", "mkdir -p /tmp/a && rm -rf /tmp/a && ls",
    "rm -rf /tmp/2>x", "rm -rf /tmp/ü",
  ]);
  answers("block", "plain text that names a path elsewhere", [
    "rm -rf /", "rm -rf /tmp", "rm -rf /tmp/", "rm -rf /tmp/.", "rm -rf /tmp/a/..", "rm -r -f /etc",
    "rm -rf /tmp/../home", "rm -rf /tmpfoo", "rm -rf /var/tmp/x", "rm /home/a -rf", "/bin/rm -r /a",
    "rm -rf /tmp/ok /etc 2>/dev/null", "echo ok\nrm -rf /a", "true&rm -rf /a", "x; rm -rf /a; y",
    "rm 2>&1 -rf /a", "rm >|log -rf /a", `rm -rf /tmp/${"a/".repeat(2048)}`, "rm -rf -- /a",
    "rm -rf build /a",
  ]);
  answers("confirm", "what is neither", [
    "rm -rf", "rm -rf build", "rm -rf ./build /tmp/x", "cd /tmp/w && rm -rf build", "rm -rf ~/old",
    'rm -rf "$HOME"', "rm -rf /tmp/*", "rm -rf /tmp/a?", "rm -rf /tmp/[a]", "rm -rf /tmp/{a,../b}",
    "rm -rf '/tmp/a b'", "rm -rf /tmp/a`x`", "rm -rf /tmp/a # b", "rm -r -- -x", "rm -r /tmp/a -",
    "rm -rf /tmp/a !x", "rm -rf /tmp/a\u00a0/b", "X=1 rm -rf /tmp/a", "./rm -rf /tmp/a",
  ]);
  answers("confirm", "every spelling", [
    "r'm' -r x", "'rm' -r x", "\\rm -r x", "r\\m -r x", 'rm -"r"f x', "rm '-r' x", "$'rm' -r x",
    "rm$IFS-r$IFS/x", "rm${IFS}-r x", "rm${IFS%?}-r x", "rm \\\n-r x", "r\\\nm -r x", "{rm,-r,x}",
    "rm\t-r\tx", "rm -vfR x", "rm x -r", "rm --rec x", "rm$x -r y", "rm >log -r x", "/bin/rm -r x",
  ]);
  answers("confirm", "whatever stands around it", [
    "sudo rm -rf /a", "sudo -u git rm -rf /a", "docker exec git rm -rf /a", "flock l rm -r /a",
    "bash -c 'rm -rf /a'", 'sh -c "cd x; rm -r y"', "eval 'rm -r y'", "trap 'rm -r \"$d\"' EXIT",
    "ls | xargs rm -rf", "find . -exec rm -rf {} +", "echo $(rm -r y)", "echo `rm -r y`",
    "cat <(rm -r y)", "bash <<< 'rm -r y'", "cat <<E | sh\nrm -r y\nE", "(rm -r y)", "f() { rm -r y; }",
    "if x; then rm -r y; fi", "! rm -r /a", "ls # rm -r y", 'git commit -m "no rm -rf"',
    "printf 'cd x\\nrm\\t-r y' | sh", "perl -e 'system(\"rm\\t-r y\")'", "ssh h rm -r y",
    'python3 -c "import shutil; run([\'rm\', \'-r\', x])"',
  ]);
  answers("confirm", "an rm whose -r stands behind a quoted separator", [
    "rm 'a;b' -rf", 'rm "a|b" -r', 'rm "$(cd x; pwd)" -r', "rm $(ls | head) -r", "rm `a;b` -r",
    "rm a\\;b -r", "bash -c \"rm 'a;b' -r\"",
  ]);
  answers("block", "keystrokes, with the escapes that shell_send decodes", [
    "rm -rf /a\n", "rm -rf /a\r", "rm -rf /a\\n", "ls\\nrm -r /a\\r", "rm\\x20-r\\x20/a\\n",
    "rm\\t-r /a\n", "r\\x1bm -r /a", "\\x03rm -r /a", "r\\xffm -r /a", "\\x72m -r /a",
  ], "shell_send");
  answers("continue", "other keystrokes", [
    "ls\n", "it's", "rm y\n", "rm\\x20-r\\x20/tmp/a\\n", "rm -r /tmp/a\r", "\\x03", "y", "",
  ], "shell_send");
  answers("confirm", "keystrokes that hold a backslash when they arrive", [
    "rm -r /tmp/a\\\\n/../../home\n", "\\\\rm -r /tmp/a", "rm -r /tmp/a\\x5cn/../../home\n",
  ], "shell_send");
  answers("block", "a program started without a shell", [
    "rm -r /a", "rm\n-r\n/a", "rm\u0085-r\u0085/a", "rm ; -r /a", "rm -r /tmp/a;/../../home",
  ], "shell_start");
  answers("confirm", "what would be a shell's there", ["rm -r /tmp/a # b", "sudo rm -r y"], "shell_start");
  answers("continue", "other programs", ["bash -l", "rm -r /tmp/a", "ssh me@host"], "shell_start");
  answers("continue", "the same text in another tool", ["rm -rf y", "rm -rf /"], "write");

  test("subscribes to every tool that it reads", () => {
    const tools = manifest.hooks.flatMap(({ tool }: { tool?: string }) => tool ?? []);
    assert.deepEqual(tools, ["bash", "shell_start", "shell_send"]);
  });

  test("looks at the field that goes with the tool", async (t) => {
    const { ask } = start(t);
    for (const [tool, input, action] of [
      ["bash", { input: "rm -r y" }, "continue"],
      ["shell_send", { command: "rm -r y" }, "continue"],
      [null, { command: "rm -r y" }, "continue"],
      ["constructor", { command: "rm -r y" }, "continue"],
      ["bash", {}, "continue"],
      ["bash", null, "continue"],
      ["bash", { command: null }, "continue"],
      ["bash", { command: 42 }, "block"],
      ["bash", { command: ["rm", "-r", "y"] }, "block"],
      ["bash", { command: { toString: 1 } }, "block"],
      ["shell_send", { input: {} }, "block"],
    ] as const) {
      const { result } = await ask(hook(event(tool, input)));
      assert.equal(members(result).action, action, `${tool} ${JSON.stringify(input)}`);
    }
  });

  test("asks in the guide's words too, and shows the command, cut between characters", async (t) => {
    const { ask } = start(t);
    const ask200 = "rm -r 👋".padEnd(300, "👋");
    for (const [command, shown] of [
      ["rm -rf build", '"rm -rf build"'],
      [ask200, JSON.stringify([...ask200].slice(0, 200).join(""))],
    ]) {
      const message = `rm -r, not plainly below /tmp: ${shown}`;
      const { result } = await ask(hook(guide({ tool_input: { command } })));
      assert.deepEqual(result, { action: "confirm", message });
    }
  });

  test("reads any text in linear time", async (t) => {
    const { ask } = start(t);
    for (const unit of [
      "a ", `'a'"b"`, `"`, "\\a", "$(a)", "$(", "`", "rm ", "rm -", "git ", "; rm -r /tmp/a ", "a/../",
      "1", "${IFS", "-- ", "\n", ">", "rm -r /tmp/a -- ", "-rr", "\\",
    ]) {
      const time = async (bytes: number) => {
        const command = `rm -r /tmp/${"a".repeat(bytes)}/${unit.repeat(bytes / unit.length)}`;
        const since = performance.now();
        await ask(hook(event("bash", { command })));
        return performance.now() - since;
      };
      await time(2 ** 15); // warms up
      const [one, eight] = [await time(2 ** 16), await time(2 ** 19)];
      // Eight times the text, and some noise. Quadratic time would be 64 times as long.
      assert.ok(eight < 24 * one + 500, `${JSON.stringify(unit)}: ${one} ms, then ${eight} ms`);
    }
  });
});

// ---- Life and death -----------------------------------------------------------------------------

describe("life", () => {
  test("writes nothing before it is asked, and ends with its input", async (t) => {
    assert.deepEqual(await start(t).end(), { code: 0, signal: null, stderr: "", replies: [] });
  });

  test("ends with exit code 0 when the input ends in blanks", async (t) => {
    const { send, end } = start(t);
    send(probe, "\r\n\n \r");
    const { code, replies } = await end();
    assert.deepEqual({ code, replies }, { code: 0, replies: [probed] });
  });

  test("answers everything asked before the input ends, however large", async (t) => {
    const { send, end } = start(t);
    const ids = Array.from({ length: 2000 }, (_, id) => `${id}${"i".repeat(1000)}`);
    send(...ids.map((id) => ({ ...probe, id })), "\r\n\n");
    const { code, replies } = await end();
    assert.deepEqual(replies, ids.map((id) => ({ ...probed, id })));
    assert.equal(code, 0);
  });

  for (const [name, text] of [
    ["in a header", "Content-Len"],
    ["after a line of a header", "Content-Length: 2\r\n"],
    ["before a body", "Content-Length: 2\r\n\r\n"],
    ["in a body", framed({ ...probe, id: 2 }).slice(0, -1)],
  ] as const) {
    test(`ends with one line and exit code 1 when the input ends ${name}`, async (t) => {
      const { send, end } = start(t);
      send(probe, text);
      const { code, stderr, replies } = await end();
      assert.deepEqual({ code, replies }, { code: 1, replies: [probed] });
      assert.deepEqual(lines(stderr).slice(1), [`${prefix} input ended inside a frame`]);
    });
  }

  test("answers a shutdown with an id, and nothing after it", async (t) => {
    const { send, ended } = start(t);
    send({ jsonrpc: "2.0", id: 9, method: "shutdown", params: null }, probe, "garbage\r\n\r\n");
    assert.deepEqual(await ended(), {
      code: 0, signal: null, stderr: "", replies: [{ jsonrpc: "2.0", id: 9, result: {} }],
    });
  });

  test("ends silently after a shutdown without an id", async (t) => {
    const { send, ended } = start(t);
    send({ jsonrpc: "2.0", method: "shutdown" }, probe);
    assert.deepEqual(await ended(), { code: 0, signal: null, stderr: "", replies: [] });
  });

  for (const signal of ["SIGTERM", "SIGINT"] as const) {
    test(`is ended by ${signal}`, async (t) => {
      const { child, ask, ended } = start(t);
      await ask(probe);
      child.kill(signal);
      assert.equal((await ended()).signal, signal);
    });
  }

  test("ends with one line when nobody reads its replies any more", async (t) => {
    const { child, ask, said } = start(t);
    await ask(probe);
    child.stdout.destroy();
    child.stdin.write(framed(probe).repeat(3));
    const closed = once(child, "close");
    while (!said().at(-1)?.includes("EPIPE")) await once(child.stderr, "data");
    if (isDeno) child.stdin.end();
    assert.equal((await closed)[0], 1);
    assert.ok(said().at(-1)?.startsWith(prefix), said().at(-1));
  });

  test("serves on when nobody reads its stderr any more", async (t) => {
    const { child, ask, end } = start(t);
    child.stderr.destroy();
    for (let id = 0; id < 5; id++) assert.deepEqual(await ask({ ...probe, id }), { ...probed, id });
    assert.equal((await end()).code, 0);
  });

  const script = spawnSync("script", ["--version"]).stdout?.includes("util-linux");
  const skip = isDeno ? "stdin stays open" : !script && "needs script";
  it("says what it is when started in a terminal", { skip }, () => {
    const args = ["-qec", command.join(" "), "/dev/null"];
    const { stdout, status } = spawnSync("script", args, { cwd: root, timeout: 30_000 });
    assert.equal(`${stdout}`.split("\r\n").length, 2);
    assert.match(`${stdout}`, /SynapsCLI.*npm test/);
    assert.equal(status, 1);
  });
});

// ---- The start file: bare clones, odd folders, old Nodes ----------------------------------------

describe("start file", { skip: launcher && "another launcher" }, () => {
  const strips = Boolean(Reflect.get(process.features, "typescript"));
  const starts = async (t: TestContext, folder: string) => {
    const { ask, end } = start(t, folder);
    assert.deepEqual(await ask(probe), probed);
    assert.equal((await end()).code, 0);
  };
  const refuses = async (t: TestContext, folder: string) => {
    const { code, stderr } = await start(t, folder).end();
    assert.equal(code, 1);
    assert.match(stderr, /^\[hello-ext\] needs Node 22\.18.*npm ci.*\n$/);
  };
  const bare = strips ? starts : refuses;

  test("starts a bare clone, or says in one line what it needs", (t) => bare(t, copy(t)));
  test("and in a folder with an odd name", (t) => bare(t, copy(t, "a b#%41ü")));
  test("refuses below node_modules without tsx", (t) => refuses(t, copy(t, "node_modules/x")));

  test("starts where it cannot write its cache", async (t) => {
    const folder = copy(t);
    writeFileSync(join(folder, "node_modules"), ""); // a file: no folder can be made there
    await bare(t, folder);
  });

  it("sees an edit at the next start", { skip: !strips && "needs tsx" }, async (t) => {
    const folder = copy(t);
    const file = join(folder, main);
    for (const name of ["Ada", "Bob"]) {
      const text = read(main).replace('?? "world"', `?? "${name}"`);
      writeFileSync(file, text);
      const { ask, end } = start(t, folder);
      assert.deepEqual(await ask(call("hello", {})), response(told(`Hello, ${name}!`)));
      await end();
    }
  });
});

// ---- One source of truth ------------------------------------------------------------------------

/** What a hook needs, and for the action of two of them (`replace`, `context_phase`) one more. */
const permissions: Record<string, string[]> = {
  before_tool_call: ["tools.intercept"],
  after_tool_call: ["tools.intercept", "tools.transform_output"],
  before_message: ["privacy.llm_content"],
  on_message_complete: ["privacy.llm_content", "session.lifecycle"],
  on_compaction: ["privacy.llm_content"],
  on_session_start: ["session.lifecycle"],
  on_session_end: ["session.lifecycle"],
};

describe("one source of truth", () => {
  const pkg = JSON.parse(read("package.json"));
  let initialize: typeof info;
  before(async () => {
    const endings: (() => void)[] = [];
    const { ask } = start({ after: (fn) => endings.push(fn) });
    const { result } = await ask({ ...probe, method: "initialize" });
    initialize = result as typeof info;
    endings.forEach((fn) => fn());
  });

  test("name and version are the same everywhere", () => {
    const lock = JSON.parse(read("package-lock.json"));
    const say = ({ name, version }: { name: string; version: string }) => `${name} ${version}`;
    const all = {
      "package.json": say(pkg), ".synaps-plugin/plugin.json": say(plugin),
      [`NAME and VERSION in ${main}`]: say(initialize), "package-lock.json": say(lock),
      "package-lock.json, packages": say(lock.packages[""]), // npm install writes both
    };
    assert.deepEqual(all, Object.fromEntries(Object.keys(all).map((place) => [place, say(pkg)])));
    assert.equal(plugin.license, pkg.license);
    const installed = `~/.synaps-cli/plugins/${pkg.name}\n`; // the directory's name is the id
    assert.ok(read("README.md").includes(installed), `the README installs into ${installed}`);
  });

  test("plugin.json says the same in the runtime's words and the guide's", () => {
    assert.equal(manifest.runtime, "process");
    assert.equal(manifest.command, "node");
    assert.equal(manifest.entry_point, `tsx ${main}`);
    assert.equal(pkg.scripts.start, manifest.entry_point, "start in package.json");
    assert.deepEqual(manifest.args, [".synaps-plugin/start.mjs"]);
    assert.equal(manifest.protocol_version, initialize.protocol_version);
    assert.equal(manifest.extension_protocol_version, initialize.protocol_version);
    assert.equal(plugin.compatibility.extension_protocol, String(initialize.protocol_version));
  });

  test("every file that plugin.json names is there", () => {
    for (const file of [main, manifest.setup, ...manifest.args]) assert.ok(existsSync(join(root, file)), file);
  });

  test("plugin.json subscribes to the hooks of initialize, and no others", () => {
    const subscribed = new Set(manifest.hooks.map(({ hook }: { hook: string }) => hook));
    assert.deepEqual([...subscribed], initialize.capabilities.hooks.map(({ name }) => name));
  });

  test("plugin.json asks for the permissions of its tools and hooks, and no others", () => {
    const { tools, hooks } = initialize.capabilities;
    const needed = new Set(hooks.map(({ name }) => permissions[name]?.[0]));
    if (tools.length > 0) needed.add("tools.register");
    const allowed = new Set([...needed, ...hooks.flatMap(({ name }) => permissions[name] ?? [])]);
    const asked = new Set<string>(manifest.permissions);
    const missing = [...needed].filter((name) => !asked.has(`${name}`));
    const needless = [...asked].filter((name) => !allowed.has(name));
    assert.deepEqual({ missing, needless }, { missing: [], needless: [] });
  });

  test("the README's first command prints what it says", () => {
    const first = /```sh\nnpm ci && (.*)\n```[^`]*```\n([^`]*)\n```/;
    const [, line, output] = first.exec(read("README.md")) ?? [];
    assert.ok(line && output, "the README's first command, with its output");
    const run = command.join(" ");
    const here = line.replace(`node --import tsx ${main}`, run);
    assert.ok(here.includes(run), line);
    const { stdout, stderr } = spawnSync("sh", ["-c", here], { cwd: root, timeout: 30_000 });
    assert.equal(`${stdout}`.replaceAll("\r\n", "\n"), output, `${stderr}`);
  });

  test("the README's conversation is what is said", async (t) => {
    const [, text] = /## The conversation[^`]*```\n([^`]*)\n```/.exec(read("README.md")) ?? [];
    assert.ok(text, "the README's conversation");
    const messages = text.split("\n").map((line) => JSON.parse(line));
    const { ask } = start(t);
    for (let i = 0; i < messages.length; i += 2) {
      assert.deepEqual(await ask(messages[i]), messages[i + 1]);
    }
  });
});
