// Drives the extension over pipes as SynapsCLI does: with the command of plugin.json, the runtime's
// environment and its working directory. The framing is written here once more, to test it.
// In a copy, "Step 8" and "The tool hello" are yours, "The guard" goes out in one piece. What comes
// after holds for any extension; it also runs the README's first command and its conversation.

import assert from "node:assert/strict";
import { spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import * as fs from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, describe, it } from "node:test";
import { setTimeout as delay } from "node:timers/promises";
import { fileURLToPath } from "node:url";

// ---- Harness ------------------------------------------------------------------------------------

const root = fileURLToPath(new URL(".", import.meta.url));
const read = (file: string) => fs.readFileSync(join(root, file), "utf8");
const { extension: manifest, ...plugin } = JSON.parse(read(".synaps-plugin/plugin.json"));
const main = "hello-ext.ts";
const limit = { timeout: 120_000 }; // of a section: a hang fails, whatever hangs

// What starts the extension: the variable LAUNCHER ("deno run -A hello-ext.ts"), else the manifest's
// command, in which `node` is the Node that runs the tests.
const launcher = process.env.LAUNCHER?.split(" ");
const command = launcher ?? [process.execPath, ...manifest.args];
const [program = "", ...args] = command;
if (launcher) console.log(`The extension is started by ${command.join(" ")}`);
const isNode = program.endsWith("node");
const isDeno = program.endsWith("deno"); // it does not end by itself while its stdin is open

type Message = Record<string, unknown>;
type Owner = { after(fn: () => void): void }; // a test, or a section

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

/** A new folder; it is removed with its owner. */
function temporary(owner: Owner): string {
  const folder = fs.mkdtempSync(join(tmpdir(), "extension-"));
  owner.after(() => fs.rmSync(folder, { recursive: true, force: true }));
  return folder;
}

const homes = new WeakMap<Owner, string>();
/** What the runtime passes on of its environment; HOME is the test's own, and the same in it. */
function environment(owner: Owner) {
  const { PATH, LANG, TERM, XDG_RUNTIME_DIR } = process.env;
  const HOME = homes.get(owner) ?? temporary(owner);
  homes.set(owner, HOME);
  return { PATH, LANG, TERM, XDG_RUNTIME_DIR, HOME };
}

/** Starts the extension in a folder; its owner's end kills it if it still runs then. */
function start(owner: Owner, cwd = root) {
  const child = spawn(program, args, { cwd, env: environment(owner) });
  const closed = once(child, "close");
  const replies = unframed(child.stdout);
  let stderr = "";
  child.stderr.setEncoding("utf8").on("data", (text) => (stderr += text));
  child.stdin.on("error", () => {}); // it may end before it has read everything
  owner.after(() => child.kill("SIGKILL"));

  /** Writes messages in one chunk; a string goes as it is. */
  const send = (...messages: unknown[]) =>
    child.stdin.write(messages.map((m) => (typeof m === "string" ? m : framed(m))).join(""));
  /** The next reply. Rejects when the extension has ended; a hang ends with the section's time. */
  const receive = async (): Promise<Message> => {
    const { done, value } = await replies.next();
    return done ? assert.fail(`the extension has ended: ${stderr}`) : value;
  };
  const ask = (message: unknown) => (send(message), receive());
  /** Waits until it has ended by itself; gives its exit code, stderr and last replies. */
  const ended = async () => {
    if (isDeno) child.stdin.end();
    const rest: Message[] = [];
    for await (const reply of replies) rest.push(reply);
    const [code, signal] = await closed;
    return { code, signal, stderr, replies: rest };
  };
  const end = () => (child.stdin.end(), ended()); // ends its input first
  return { child, closed, send, receive, ask, ended, end, said: () => stderr };
}

/** A copy of the folder, as a clone is: without what npm installs. */
function copy(owner: Owner, name = "copy"): string {
  const folder = join(temporary(owner), name);
  const filter = (path: string) => !/[\\/](?:node_modules|\.git)$/.test(path);
  fs.cpSync(root, folder, { recursive: true, filter });
  return folder;
}

/** A copy of the folder, with its packages, in which some code stands in place of other. */
function variant(owner: Owner, from: string, to: string): string {
  const folder = copy(owner);
  fs.symlinkSync(join(root, "node_modules"), join(folder, "node_modules"));
  const [head, tail, ...more] = read(main).split(from);
  assert(tail !== undefined && more.length === 0, `${from} has to be in ${main} once`);
  fs.writeFileSync(join(folder, main), head + to + tail);
  return folder;
}

/** What it writes to stderr. */
const logged = (...texts: string[]) => texts.map((text) => `[${plugin.name}] ${text}\n`).join("");
const members = (value: unknown): Message => Object(value);

// A request that any extension answers, its reply, and what it says: serving goes on.
const probe = { jsonrpc: "2.0", id: "probe", method: "no.such.method" };
const probed = { jsonrpc: "2.0", id: "probe", result: {} };
const unknown = 'unknown method "no.such.method"';

/** What SynapsCLI 0.11.1 sends with hook.handle: every field, null where it has nothing to say. */
const event = (tool_name: unknown, tool_input: unknown, kind = "before_tool_call") => ({
  kind, tool_name, tool_runtime_name: tool_name, tool_input, tool_output: null, message: null,
  session_id: null, transcript: null, data: null,
});
const guide = (context: unknown, hook = "before_tool_call") => ({ hook, context }); // the guide's

const request = (method: string, params?: unknown) => ({ jsonrpc: "2.0", id: 1, method, params });
const call = (name: unknown, input: unknown) => request("tool.call", { name, input });
const hook = (params: unknown) => request("hook.handle", params);
const response = (result: unknown) => ({ jsonrpc: "2.0", id: 1, result });
const failure = (code: number, message: string) =>
  ({ jsonrpc: "2.0", id: 1, error: { code, message } });
/** The result of a tool call: the runtime reads content, the guide output. */
const told = (text: string) => ({ content: text, output: text });
const goOn = { action: "continue" };
const ls = { command: "ls -la" };

// ---- Step 8 -------------------------------------------------------------------------------------
// The conversation of "Step 8 — Test it without the runtime" in SynapsCLI's own tutorial,
// docs/extensions/tutorial.md. The README has the one that SynapsCLI 0.11 really holds.

const tool = {
  name: "hello",
  description: "Greet someone by name",
  input_schema: { type: "object", properties: { name: { type: "string" } }, required: ["name"] },
};
const info = {
  name: plugin.name,
  version: plugin.version,
  protocol_version: 1,
  capabilities: { tools: [tool], hooks: [{ name: "before_tool_call" }] },
};
const ada = { name: "hello", input: { name: "Ada" } };
const rm = { command: "rm -rf /home/me" };
const advice = "name literal paths below /tmp, or ask the user to run it";
const blocked = { action: "block", reason: `rm -r of "/home/me": ${advice}` };

describe("Step 8", limit, () => {
  const { ask, ended } = start({ after });
  const step = (method: string, params: unknown, result: unknown) => async () =>
    assert.deepEqual(await ask(request(method, params)), response(result));
  it("answers initialize", step("initialize", {}, info));
  it("greets", step("tool.call", ada, told("Hello, Ada!")));
  it("lets ls run", step("hook.handle", guide({ tool_name: "bash", tool_input: ls }), {}));
  it("blocks rm", step("hook.handle", guide({ tool_name: "bash", tool_input: rm }), blocked));
  it("bears an unknown method", step("no.such.method", {}, {}));
  it("answers shutdown", step("shutdown", {}, {}));
  it("ends by itself, with a line for each thing that is worth one", async () => {
    const { code, stderr } = await ended();
    assert.deepEqual({ code, stderr }, { code: 0, stderr: logged(unknown) });
  });
});

// ---- The tool hello -----------------------------------------------------------------------------
describe("the tool hello", limit, () => {
  it("greets by a name, the world without one, and refuses what is no string", async (t) => {
    const { ask, end } = start(t);
    for (const [name, greeted] of [["Zoë 👋", "Zoë 👋"], ["", ""], [null, "world"], [, "world"]]) {
      assert.deepEqual(await ask(call("hello", { name })), response(told(`Hello, ${greeted}!`)));
    }
    for (const [name, type] of [[42, "number"], [["a"], "object"], [{ toString: 1 }, "object"]]) {
      const message = `name is ${type}, not a string`;
      assert.deepEqual(await ask(call("hello", { name })), failure(-32602, message));
    }
    assert.equal((await end()).stderr, "");
  });
});

// ---- The guard ----------------------------------------------------------------------------------
describe("the guard", limit, () => {
  for (const [answer, tool, about, ...texts] of [
    ["continue", "bash", "text without a recursive rm, but git's",
      "ls -la", "", "rm x", "rm -f x", "rm --force x", 'rm "$f"', "rm x | sort -r", "rm x & ls -R",
      "rm *.o && cp -r b c", "rm a\nls -R", "rm my-draft.md pre-r", "rmdir -r x", "./storm -rf /x",
      "docker run --rm -r x", "npm run rm-dist", "find . -exec rm {} + -print", "cp -r rm x",
      'for f in *; do rm "$f"; done', 'bash -c "$CMD"', "echo 'open quote", "(git rm -r x)",
      'git rm -r x && git commit -m "y"', "cd x && git rm -rf y", "x | xargs -0 git rm -r", "do git rm -r $f"],
    ["continue", "bash", "plain text that names literal paths below /tmp",
      "rm -rf /tmp/a", "rm -r //tmp///a", "rm -rf /tmp/./a/", "rm -rf /tmp/a/../b", "rm /tmp/a -fR",
      "rm -rf /tmp/../tmp/a", "rm -rf -- /tmp/a", "rm -rf /tmp/... /tmp/..a /tmp/b,c /tmp/ü",
      "/bin/rm -r /tmp/a", "rm --recursive /tmp/a &>log", "rm -rf /tmp/a 2>/dev/null || true",
      "rm -r /tmp/a > log 2>&1; ls", "rm -rf /tmp/a&&ls", "rm -rf /tmp/2>x", "rm -r /tmp/a 2>&-"],
    ["block", "bash", "plain text that names a path elsewhere",
      "rm -rf /", "rm -rf /tmp", "rm -rf /tmp/.", "rm -rf /tmp/a/..", "rm -rf /tmp/../home",
      "rm -rf /tmpfoo", "rm -r -f /var/tmp/x", "rm /home/a -rf", "/bin/rm -r /a", "rm -rf build /a",
      "rm -rf /tmp/ok /etc 2>/dev/null", "echo ok\nrm -rf /a", "true&rm -rf /a; y", "rm -rf -- /a",
      "rm >|log -rf /a", "rm -rf /tmp/a 2>& -/home/a", `rm -rf /tmp/${"a/".repeat(2048)}`],
    ["confirm", "bash", "a path that is neither",
      "rm -rf", "rm -rf build", "rm -rf ./b /tmp/x", "cd /tmp/w && rm -rf build", "rm -rf ~/old",
      'rm -rf "$HOME"', "rm -rf /tmp/*", "rm -rf /tmp/a?", "rm -rf /tmp/[a]", "rm -rf /tmp/{a,b}",
      "rm -rf '/tmp/a b'", "rm -rf /tmp/a`x`", "rm -rf /tmp/a # b", "rm -r -- -x", "rm -r /tmp/a -",
      "rm -rf /tmp/a !x", "rm -rf /tmp/a\u00a0/b", "X=1 rm -rf /tmp/a", "./rm -rf /tmp/a"],
    ["confirm", "bash", "every spelling",
      "r'm' -r x", "\\rm -r x", "r\\m -r x", 'rm -"r"f x', "rm '-r' x", "$'rm' -r x", "rm \\\n-r x",
      "r\\\nm -r x", "rm$IFS-r$IFS/x", "rm${IFS%?}-r x", 'bash -c "r\\"\\"m\\$IFS-r x"', "{rm,-r,x}",
      "rm\t-r\tx", "rm -vfR x", "rm x -r", "rm --rec x", "rm$x -r y", "rm >log -r x", "/bin/rm -r x",
      "2>&-rm -r x", "rm <&---rec x", "su -c'rm -r x'", "bash -c $'rm\\u0020-r x'", "rm$IFS$9-r$IFS'x'",
      "printf 'cd x\\nrm\\t-r y' | sh", "printf 'a\\012rm\\x09-r x' | sh", "echo -e 'rm\\0040-r x' | sh"],
    ["confirm", "bash", "whatever stands around it, or in between",
      "sudo rm -rf /a", "sudo -u git rm -rf /a", "docker exec git rm -rf /a", "flock l rm -r /a",
      "bash -c 'rm -rf /a'", 'sh -c "cd x; rm -r y"', "trap 'rm -r \"$d\"' EXIT", "xargs rm -rf",
      "find . -exec rm -rf {} +", "x $(rm -r y)", "x `rm -r y`", "cat <(rm -r y)", "(rm -r y)",
      "bash <<< 'rm -r y'", "sh <<E\nrm -r y\nE", "f() { rm -r y; }", "if x; then rm -r y; fi",
      "! rm -r /a", "ls # rm -r y", 'git commit -m "no rm -rf"', "(git\nrm -r y)", "x $(git; rm -r y)",
      "# sudo git \\\nrm -r y", "printf '(git\\nrm -r y)' | sh", 'rm "$(x "a|b")" -r', "rm `a;b` -r",
      "rm 'a;b' -r", "rm a\\;b -r", "rm !(a|b) -r", "rm ${x:-a;b} -r", "rm a$[1|2] -r"],
    ["block", "shell_send", "keystrokes, with the escapes that are decoded before they are typed",
      "rm -rf /a\n", "rm -rf /a\r", "ls\\nrm -r /a\\r", "rm\\x20-r\\x20/a\\n", "rm\\t-r /a\n",
      "r\\x1bm -r /a", "r\\x0bm -\\x0cr /a", "\\x03rm -r /a", "r\\xffm -r /a", "\\x72m -r /a"],
    ["continue", "shell_send", "other keystrokes",
      "ls\n", "it's", "rm y\n", "rm\\x20-r\\x20/tmp/a\\n", "rm -r /tmp/a\r", "\\x03", "y", ""],
    ["confirm", "shell_send", "keystrokes with a backslash in what is typed",
      "rm -r /tmp/a\\\\n/../../home\n", "\\\\rm -r /tmp/a", "rm -r /tmp/a\\x5cn/../../home\n"],
    ["block", "shell_start", "a program, started without a shell",
      "rm -r /a", "rm\n-r\n/a", "rm\u0085-r\u0085/a", "rm ; -r /a", "rm -r /tmp/a;/../../home"],
    ["confirm", "shell_start", "what is no plain rm there", "rm -r /tmp/a # b", "nohup rm -r y"],
    ["continue", "shell_start", "other programs", "bash -l", "rm -r /tmp/a", "ssh me@host"],
    ["continue", "write", "any text in another tool", "rm -rf y", "rm -rf /"],
    ["continue", "constructor", "any text in a tool of this name", "rm -rf /"],
  ]) {
    it(`${tool}: ${answer}, ${about}`, async (t) => {
      const { send, end } = start(t);
      const field = tool === "shell_send" ? "input" : "command";
      send(...texts.map((text) => hook(event(tool, { [field]: text }))));
      const { replies } = await end();
      const answers = replies.map(({ result }, i) => [texts[i], members(result).action]);
      assert.deepEqual(answers, texts.map((text) => [text, answer]));
    });
  }

  it("reads the field of each tool that plugin.json subscribes to, and no other", async (t) => {
    const { ask } = start(t);
    const fields = { bash: "command", shell_start: "command", shell_send: "input" };
    const tools = manifest.hooks.map(({ tool }: { tool?: string }) => tool);
    assert.deepEqual(tools, Object.keys(fields));
    for (const [tool, field] of Object.entries(fields)) {
      for (const [answer, ...inputs] of [
        ["continue", null, {}, { text: "rm -r y" }, { [field]: null }],
        ["block", { [field]: 42 }, { [field]: ["rm", "-r"] }, { [field]: { toString: 1 } }],
      ]) {
        for (const input of inputs) {
          const { result } = await ask(hook(event(tool, input)));
          assert.deepEqual([tool, input, members(result).action], [tool, input, answer]);
        }
      }
    }
  });

  it("asks in the guide's words too, and shows the command, cut between characters", async (t) => {
    const { ask } = start(t);
    for (const command of ["rm -rf build", "rm -r 👋".padEnd(300, "👋")]) {
      const { result } = await ask(hook(guide({ tool_input: { command } })));
      const shown = JSON.stringify([...command].slice(0, 200).join(""));
      const message = `rm -r, not plainly below /tmp: ${shown}`;
      assert.deepEqual(result, { action: "confirm", message });
    }
  });

  it("reads any text in linear time", async (t) => {
    const { ask } = start(t);
    for (const unit of [
      "a ", "a/../", "1", "\n", ">", "-rr", "\\", "\\a", `'a'"b"`, '"', "`", "$(", "$(a)", "${IFS",
      "rm ", "rm -", "git ", "-- ", "; rm -r /tmp/a ", "rm -r /tmp/a -- ",
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

// ---- Framing: all from here on holds for any extension ------------------------------------------
describe("framing", limit, () => {
  it("answers in exactly these bytes", async (t) => {
    const { child, send } = start(t);
    send({ ...probe, id: "ü" }, { jsonrpc: "2.0", id: 2, method: "shutdown" });
    child.stdin.end();
    const bytes = Buffer.concat(await child.stdout.toArray());
    assert.equal(bytes.toString("latin1"),
      'Content-Length: 39\r\n\r\n{"jsonrpc":"2.0","id":"Ã¼","result":{}}' +
      'Content-Length: 36\r\n\r\n{"jsonrpc":"2.0","id":2,"result":{}}');
  });

  it("reads a message in two chunks, wherever it is cut", async (t) => {
    const { child, receive } = start(t);
    const bytes = Buffer.from(framed({ ...probe, id: "👋" }));
    for (let cut = 1; cut < bytes.length; cut++) {
      child.stdin.write(Buffer.concat([Buffer.from(framed(probe)), bytes.subarray(0, cut)]));
      assert.deepEqual(await receive(), probed); // so the first part has been read on its own
      child.stdin.write(bytes.subarray(cut));
      assert.deepEqual(await receive(), { ...probed, id: "👋" });
    }
  });

  it("reads every way to write a header, and a body of 64 MiB", async (t) => {
    const { ask } = start(t);
    const body = JSON.stringify(probe);
    const header = `Content-Length: ${body.length}`;
    for (const text of [
      `content-length:${body.length}\r\n\r\n`,
      `CONTENT-LENGTH \t:\t  000${body.length} \t\r\n\r\n`,
      `A: b\r\n${header}\r\nContent-Type: c; d=e\r\n\r\n`,
      `${header}\n\n`, `${header}\n\r\n`, `\r\n\n\r\n${header}\r\n\r\n`,
      `${header}\r\nContent-Length: 0${body.length}\r\n\r\n`, // the same length twice
      `A: ${"b".repeat(8192 - header.length - 9)}\r\n${header}\r\n\r\n`, // 8 KiB
    ]) {
      assert.deepEqual([text, await ask(text + body)], [text, probed]);
      assert.deepEqual(await ask(probe), probed);
    }
    const rest = 2 ** 26 - JSON.stringify({ ...probe, params: "" }).length;
    assert.deepEqual(await ask({ ...probe, params: "a".repeat(rest) }), probed);
  });

  it("waits for a slow reader", { skip: program.endsWith("bun") }, async (t) => {
    const { ask, send, end, said } = start(t);
    await ask(probe); // it runs, and from now on nothing is read
    send(framed({ ...probe, id: "i".repeat(1000) }).repeat(8000));
    for (let seen = -1; said().length > seen; await delay(500)) seen = said().length; // till it rests
    assert.ok(said().split("\n").length < 8000, "it answered all of them");
    assert.equal((await end()).replies.length, 8000);
  });

  const noLength = "no one Content-Length of up to 64 MiB";
  const values = ["", "abc", "1:5", "24abc", "-1", "+2", "2.0", "1e3", "0x10", "1 2", `${2 ** 26 + 1}`];
  for (const [text = "", complaint = ""] of [
    ...[
      "X-Other: 1", "X: Content-Length: 5", "X: a\rContent-Length: 5",
      "Content-Length: 2\r\nContent-Length: 3", ...values.map((value) => `Content-Length:${value}`),
    ].map((header) => [`${header}\r\n\r\n`, `${noLength}: ${JSON.stringify(header)}`]),
    [`Content-Length: ${"9".repeat(400)}\n\n`, noLength],
    ["a".repeat(2 ** 20), "header over 8 KiB"],
    [`A: ${"b".repeat(8192 - 4)}\n\n`, "header over 8 KiB"], // by one byte
    ["A: b\n".repeat(1700), "header over 8 KiB"],
  ]) {
    it(`ends at once, with exit code 1, at ${JSON.stringify(text.slice(0, 40))}`, async (t) => {
      const { send, ended } = start(t);
      send(probe, text, probe);
      const { code, stderr, replies } = await ended(); // its input is still open
      assert.deepEqual({ code, replies }, { code: 1, replies: [probed] });
      assert.ok(stderr.startsWith(logged(unknown, complaint).trimEnd()), stderr);
      assert.equal(stderr.split("\n").length, 3); // the first is about the probe
    });
  }
});

// ---- JSON-RPC -----------------------------------------------------------------------------------
describe("json-rpc", limit, () => {
  it("answers what is no request with an error, and serves on", async (t) => {
    const { child, ask, receive } = start(t);
    child.stdin.write(Buffer.from('Content-Length: 3\n\n"\xff"', "latin1")); // no UTF-8
    assert.deepEqual(members((await receive()).error).code, -32700);
    for (const [code, id, ...broken] of [
      [-32700, null, frame("invalid message"), frame(""), frame("\ufeff{}")], // a byte order mark
      [-32600, null, [probe], 42, null, frame('"x"'), {}], // a batch, and what is no object
      [-32600, 1, { id: 1 }, { id: 1, method: 7 }, { id: 1, method: null, result: 1 }],
      [-32600, null, ...[[1], {}, false, "i".repeat(1025)].map((id) => ({ ...probe, id }))],
      [-32600, null, frame('{"id":9007199254740993,"method":"a"}')], // changed by reading it
      [-32600, null, frame('{"id":1e999,"method":"a"}')],
      [-32602, 1, call("nope", {}), call("constructor", {}), request("tool.call", null)],
    ]) {
      for (const message of broken) {
        const { error, ...reply } = await ask(message);
        const { message: text, ...rest } = members(error);
        assert.deepEqual([message, reply, rest], [message, { jsonrpc: "2.0", id }, { code }]);
        assert.match(String(text), /./);
        assert.deepEqual(await ask(probe), probed);
      }
    }
  });

  it("answers no response and no notification", async (t) => {
    const { ask, end } = start(t);
    for (const message of [
      { id: 5, result: {} }, { id: 5, error: { code: 1, message: "" } },
      { method: "$/cancelRequest", params: { id: 1 } }, { method: "initialize" },
      { method: "tool.call", params: { name: "x" } }, // it fails
      { method: "hook.handle", params: event("bash", ls) },
    ]) {
      assert.deepEqual(await ask(framed(message) + framed(probe)), probed);
    }
    assert.deepEqual((await end()).replies, []);
  });

  it("answers with the id as it came, but with U+FFFD for half a surrogate pair", async (t) => {
    const { ask } = start(t);
    for (const id of [0, -1, 1.5, Number.MAX_SAFE_INTEGER, null, "", "0", "Zoë 漢字 👋 \u2028",
      "i".repeat(1024), "\\ud83d", "\\\\ud83d\u001f"]) {
      assert.deepEqual(await ask({ id, method: "no.such.method" }), { ...probed, id });
    }
    for (const half of ["\ud83d", "\udc4b\ud83d", "👋\ud83d👋", "\\\ud83d"]) {
      const id = half.replaceAll(/[\ud800-\udfff]/gu, "\ufffd");
      assert.deepEqual(await ask({ ...probe, id: half }), { ...probed, id });
    }
  });

  it("takes no member of Object.prototype for a method, and says what is unknown", async (t) => {
    const { ask, end } = start(t);
    const methods = ["constructor", "__proto__", "toString", "", "a\nb"];
    for (const method of methods) assert.deepEqual(await ask({ ...probe, method }), probed);
    const said = methods.map((method) => `unknown method ${JSON.stringify(method)}`);
    assert.equal((await end()).stderr, logged(...said));
  });
});

// ---- A tool, whatever it does -------------------------------------------------------------------
describe("a tool", limit, () => {
  /** Starts the extension with one tool, of any name, that runs some code. */
  const startWith = (owner: Owner, code: string) => start(owner,
    variant(owner, "tools.find((tool) => tool.name === name)", `{ call: (input) => {${code}} }`));
  const callIt = (input?: unknown) => call("any", input);

  it("gets its input, {} for none, and nothing that is no object", async (t) => {
    const { ask } = startWith(t, "return JSON.stringify(input);");
    for (const [input, text] of [[{ a: 1 }, '{"a":1}'], [null, "{}"], [undefined, "{}"]] as const) {
      assert.deepEqual(await ask(callIt(input)), response(told(text)));
    }
    for (const input of [[1], "Ada", false]) {
      assert.deepEqual(await ask(callIt(input)), failure(-32602, "input is no object"));
    }
  });

  for (const [name, code, message] of [
    ["throws", 'throw new Error("no\\r\\nluck\\n\\rtoday");', "no\r\nluck\n\rtoday"],
    ["throws at length", 'throw new Error("long".repeat(1e6));', "long".repeat(50)],
    ["rejects", 'return Promise.reject(new Error("no luck"));', "no luck"],
    ["throws what is no error", "throw null;", "object"],
    ["throws a number for a message", "throw Object.assign(new Error(), { message: 42 });", "42"],
    ["gives what is no JSON", 'return { toJSON() { throw new Error("no JSON"); } };', "no JSON"],
  ] as const) {
    it(`that ${name} is answered with -32603 and one line on stderr`, async (t) => {
      const { ask, end } = startWith(t, code);
      assert.deepEqual(await ask(callIt()), failure(-32603, message));
      assert.deepEqual(await ask(probe), probed);
      const line = `tool.call failed: ${message.replace(/\r\n|\n\r/g, " ")}`;
      assert.equal((await end()).stderr, logged(line, unknown));
    });
  }

  it("gets its reply through up to 4 MiB, and -32603 beyond", async (t) => {
    const { ask } = startWith(t, "return input.text;");
    const rest = JSON.stringify(response(told("")));
    const text = "a".repeat((2 ** 22 - rest.length) / 2);
    assert.deepEqual(await ask(callIt({ text })), response(told(text)));
    const message = "a reply of 4194305 bytes is over 4 MiB";
    const over = { ...callIt({ text }), id: 10 }; // one digit more
    assert.deepEqual(await ask(over), { ...failure(-32603, message), id: 10 });
    for (const large of ["漢".repeat(2 ** 20), "a\n".repeat(2 ** 24)]) { // by its bytes, by far
      assert.equal(members((await ask(callIt({ text: large }))).error).code, -32603);
    }
  });

  const slowly = "return new Promise((done) => setTimeout(done, input.ms, input.text));";
  it("may take its time: nothing waits but the end, its reply comes with its id", async (t) => {
    const { send, ask, end } = startWith(t, slowly);
    send({ ...callIt({ ms: 500, text: "slow" }), id: "slow" });
    assert.deepEqual(await ask(hook(event("bash", ls))), response(goOn));
    assert.deepEqual(await ask(callIt({ ms: 0, text: "fast" })), response(told("fast")));
    const replies = [{ ...response(told("slow")), id: "slow" }];
    assert.deepEqual(await end(), { code: 0, signal: null, stderr: "", replies });
  });

  it("that settles at once is answered in the order of the requests", async (t) => {
    const { send, end } = startWith(t, "return Promise.resolve().then(() => '');");
    const ids = Array.from({ length: 50 }, (_, id) => id);
    const asked = ids.map((id) => ({ ...(id % 3 ? callIt() : probe), id }));
    send(...asked, frame("no JSON"), probe);
    assert.deepEqual((await end()).replies.map(({ id }) => id), [...ids, null, "probe"]);
  });

  const timer = "setInterval(() => {}, 1000);";
  const never = "return new Promise(() => {});";
  for (const [what, code, exitCode, bye] of [
    ["a promise", never, 1, "a shutdown"],
    ["a timer", `${timer} return "";`, 0, "a shutdown"],
    ["both", timer + never, 1, "the end of the input"],
    ["a reply", "return new Promise((done) => setTimeout(done, 200, ''));", 1, "a shutdown"],
  ] as const) {
    it(`that leaves ${what} behind holds up no hook, nor ${bye} for over 5 s`, async (t) => {
      const { send, receive, ended, end } = startWith(t, code);
      send({ ...callIt(), id: 2 }, hook(event("bash", ls)));
      if (exitCode === 0) assert.equal((await receive()).id, 2);
      assert.deepEqual(await receive(), response(goOn));
      const since = performance.now();
      if (bye === "a shutdown") send(request("shutdown"));
      const { code: status, replies } = await (bye === "a shutdown" ? ended() : end());
      assert.deepEqual([status, replies.length], [exitCode, bye === "a shutdown" ? 1 : 0]);
      assert.ok(performance.now() - since < 10_000);
    });
  }

  it("may write to stdout: it goes to stderr, before and after its reply", async (t) => {
    const late = 'setTimeout(() => process.stdout.write("late\\n"));';
    const chatter = isNode ? `console.log("log"); console.dir({ dir: 1 });` : ""; // see README
    const { ask, end } = startWith(t,
      `process.stdout.write("early\\n"); ${late} ${chatter} return "done";`);
    assert.deepEqual(await ask(callIt()), response(told("done")));
    assert.equal((await end()).stderr, `early\n${isNode ? "log\n{ dir: 1 }\n" : ""}late\n`);
  });
});

// ---- A hook, whatever it does -------------------------------------------------------------------
describe("a hook", limit, () => {
  /** Starts the extension with a handler in place of every hook's. */
  const startWith = (owner: Owner, handler: string) =>
    start(owner, variant(owner, 'hooks.get(event?.kind ?? "")', `(${handler})`));

  for (const [name, code, reason] of [
    ["throws", 'throw new Error("no luck");', /^no luck$/],
    ["throws what a tool may throw", 'throw new InvalidInput("no luck");', /^no luck$/],
    ["rejects", 'return Promise.reject("no luck");', /^"no luck"$/],
    ["rejects with nothing", "return Promise.reject();", /^undefined$/],
    ["answers too much", 'return { action: "block", reason: "r".repeat(2 ** 22) };', /^a reply of/],
    ["answers nothing", "return JSON.parse('[]')[0];", /undefined/], // in the engine's own words
  ] as const) {
    it(`that ${name} blocks a tool call, and lets all else go on`, async (t) => {
      const { ask, end } = startWith(t, `() => { ${code} }`);
      const { result } = await ask(hook(event("bash", ls)));
      const { action, reason: given } = members(result);
      assert.equal(action, "block");
      assert.match(String(given), reason);
      assert.deepEqual(await ask(hook(guide({ tool_input: ls }))), response(result));
      assert.deepEqual(await ask(hook(event("bash", ls, "after_tool_call"))), response(goOn));
      assert.deepEqual(await ask(hook(guide({ tool_input: ls }, "on_session_end"))), response({}));
      assert.equal((await end()).stderr, logged(...Array(4).fill(`hook.handle failed: ${given}`)));
    });
  }

  it("gets every field, in the guide's words too, answers with any, and in its time", async (t) => {
    const { ask } = startWith(t, `(input: unknown) => new Promise<HookResult>((done) =>
      setTimeout(done, 20, { action: "modify", input }))`);
    const xls = { kind: "before_tool_call", tool_name: "x", tool_input: ls };
    for (const [params, input] of [
      [event("bash", ls), event("bash", ls)],
      [guide({ tool_name: "x", tool_input: ls }), xls],
      [guide({ tool: "x", input: ls, kind: "y", message: "hi" }), { ...xls, message: "hi" }],
      [guide({ tool_name: "x", tool: "y", tool_input: ls, input: "z" }), xls],
      [guide({ tool_name: null, input: ls }), { ...xls, tool_name: "bash" }],
      [guide({}, "on_session_end"), { kind: "on_session_end", tool_name: "bash" }],
    ]) {
      assert.deepEqual(await ask(hook(params)), response({ action: "modify", input }));
    }
  });

  it("that there is not goes on, whatever the params are", async (t) => {
    const { ask, end } = start(t);
    for (const params of [undefined, null, [], "x", 1, { kind: 1 }, { hook: {} }, { context: 1 }]) {
      assert.deepEqual(await ask(hook(params)), response({}));
    }
    assert.deepEqual(await ask(hook(event("bash", ls, "constructor"))), response(goOn));
    assert.equal((await end()).stderr, "");
  });
});

// ---- Life and death -----------------------------------------------------------------------------
describe("life", limit, () => {
  it("answers all that is asked before the input ends, however much, each in order", async (t) => {
    const { send, end } = start(t);
    const ids = Array.from({ length: 5000 }, (_, id) => `${id}${"i".repeat(1000)}`);
    send(...ids.map((id) => ({ ...probe, id })), "\r\n\n \r");
    const { code, replies } = await end();
    assert.deepEqual(replies, ids.map((id) => ({ ...probed, id })));
    assert.equal(code, 0);
  });

  const header = "Content-Length: 2\n";
  for (const text of ["Content", header, `${header}\n`, `${header}\n{`]) {
    it(`ends with exit code 1 when the input ends after ${JSON.stringify(text)}`, async (t) => {
      const { send, end } = start(t);
      send(probe, text);
      const stderr = logged(unknown, "input ended inside a frame");
      assert.deepEqual(await end(), { code: 1, signal: null, stderr, replies: [probed] });
    });
  }

  it("answers a shutdown that has an id, ends at any, and reads no more", async (t) => {
    for (const [id, ...replies] of [[{ id: 1 }, response({})], [{}]]) {
      const { send, ended } = start(t);
      send({ jsonrpc: "2.0", method: "shutdown", ...id }, probe, "garbage\r\n\r\n");
      assert.deepEqual(await ended(), { code: 0, signal: null, stderr: "", replies });
    }
  });

  it("ends with one line when nobody reads its replies any more", async (t) => {
    const { child, closed, ask, said } = start(t);
    await ask(probe);
    child.stdout.destroy();
    child.stdin.write(framed(probe).repeat(3));
    while (!said().includes("EPIPE")) await once(child.stderr, "data");
    if (isDeno) child.stdin.end();
    assert.deepEqual((await closed)[0], 1);
    assert.match(said(), /\n\[[^\n]*EPIPE[^\n]*\n$/);
  });

  it("serves on when nobody reads its stderr any more", async (t) => {
    const { child, ask, end } = start(t);
    child.stderr.destroy();
    for (let id = 0; id < 5; id++) assert.deepEqual(await ask({ ...probe, id }), { ...probed, id });
    assert.equal((await end()).code, 0);
  });

  const script = spawnSync("script", ["--version"]).stdout?.includes("util-linux");
  const skip = isDeno ? "stdin stays open" : !script && "needs script";
  it("says what it is when started in a terminal", { skip }, (t) => {
    const inTerminal = ["-qec", command.join(" "), "/dev/null"];
    const { stdout, status } = spawnSync("script", inTerminal, { cwd: root, env: environment(t) });
    assert.match(`${stdout}`, /^.*SynapsCLI.*npm test(?:\x1b\[0m)?\r\n$/);
    assert.equal(status, 1);
  });
});

// ---- The start file: bare clones, odd folders, old Nodes ----------------------------------------
describe("the start file", { ...limit, skip: launcher && "another launcher" }, () => {
  const strips = Boolean(Reflect.get(process.features, "typescript"));
  /** Starts it in a folder. A Node that strips no types says in a line what it needs. */
  const starts = async (owner: Owner, folder: string, works = strips) => {
    const needs = "needs Node 22.18 or newer; or, for an older one, npm ci in its folder";
    const { send, end } = start(owner, folder);
    send(probe);
    const [code, replies, stderr] = works ? [0, [probed], unknown] : [1, [], needs];
    assert.deepEqual(await end(), { code, signal: null, stderr: logged(stderr), replies });
  };

  it("starts in a bare clone of any name, with or without a cache that git ignores", async (t) => {
    const folder = copy(t, "a b#%41ü");
    const files = () => fs.readdirSync(folder, { recursive: true }).map(String).sort()
      .filter((path) => !path.startsWith("node_modules")); // .gitignore
    const before = files();
    await starts(t, folder);
    assert.deepEqual(files(), before);
    fs.rmSync(join(folder, "node_modules"), { recursive: true, force: true });
    fs.writeFileSync(join(folder, "node_modules"), ""); // a file: there can be no cache
    await starts(t, folder);
  });

  it("needs tsx below node_modules", (t) => starts(t, copy(t, "node_modules/x"), false));

  it("shows an edit at the next start", { skip: !strips && "needs tsx" }, async (t) => {
    const folder = copy(t);
    await starts(t, folder);
    fs.writeFileSync(join(folder, main), 'console.error("edited")');
    assert.equal((await start(t, folder).end()).stderr, "edited\n");
  });
});

// ---- One source of truth ------------------------------------------------------------------------
describe("one source of truth", limit, () => {
  const pkg = JSON.parse(read("package.json"));
  /** What the extension says of itself. */
  const initialize = async (owner: Owner) => {
    const { result } = await start(owner).ask(request("initialize", {}));
    return result as typeof info;
  };

  it("has the same name, version and start everywhere, in the guide's words too", async (t) => {
    const { protocol_version, ...self } = await initialize(t);
    const lock = JSON.parse(read("package-lock.json"));
    const say = ({ name, version }: { name: string; version: string }) => `${name} ${version}`;
    const all = {
      "package.json": say(pkg),
      ".synaps-plugin/plugin.json": say(plugin),
      [`NAME and VERSION in ${main}`]: say(self),
      "package-lock.json": say(lock),
      "package-lock.json, packages": say(lock.packages[""]), // npm install writes both
    };
    assert.deepEqual(all, Object.fromEntries(Object.keys(all).map((place) => [place, say(pkg)])));
    assert.deepEqual([plugin.license, manifest.entry_point], [pkg.license, pkg.scripts.start]);
    const starts = [pkg.scripts.start, manifest.command, manifest.runtime].join(", ");
    assert.equal(starts, `tsx ${main}, node, process`);
    assert.equal(manifest.protocol_version, protocol_version);
    assert.equal(manifest.extension_protocol_version, protocol_version);
    assert.equal(plugin.compatibility.extension_protocol, `${protocol_version}`);
    for (const file of [manifest.setup, ...manifest.args]) read(file); // it is there
    const installed = `~/.synaps-cli/plugins/${pkg.name}\n`; // the directory's name is the id
    assert.ok(read("README.md").includes(installed), `the README installs into ${installed}`);
  });

  it("subscribes to its hooks in plugin.json, and has their permissions, no others", async (t) => {
    const { tools, hooks } = (await initialize(t)).capabilities;
    const subscribed = new Set(manifest.hooks.map(({ hook }: { hook: string }) => hook));
    assert.deepEqual([...subscribed].sort(), hooks.map(({ name }) => name).sort());
    const [privacy, session] = ["privacy.llm_content", "session.lifecycle"];
    const needs: Record<string, string[]> = { // the second: for replace, and for context_phase
      before_tool_call: ["tools.intercept"], on_session_start: [session], on_session_end: [session],
      after_tool_call: ["tools.intercept", "tools.transform_output"], before_message: [privacy],
      on_message_complete: [privacy, session], on_compaction: [privacy],
    };
    const needed = new Set(hooks.map(({ name }) => needs[name]?.[0]));
    if (tools.length > 0) needed.add("tools.register");
    const allowed = new Set([...needed, ...hooks.flatMap(({ name }) => needs[name] ?? [])]);
    const asked = new Set<string>(manifest.permissions);
    const missing = [...needed].filter((name) => !asked.has(`${name}`));
    const needless = [...asked].filter((name) => !allowed.has(name));
    assert.deepEqual({ missing, needless }, { missing: [], needless: [] });
  });

  it("prints what the README says, at its first command", (t) => {
    const first = /```sh\nnpm ci && (.*)\n```[^`]*```\n([^`]*)\n```/;
    const [, line, output] = first.exec(read("README.md")) ?? [];
    assert.ok(line && output, "the README's first command, with its output");
    const here = line.replace(`node --import tsx ${main}`, command.join(" "));
    assert.ok(here.includes(command.join(" ")), line);
    const { stdout, stderr } = spawnSync("sh", ["-c", here], { cwd: root, env: environment(t) });
    assert.equal(`${stdout}`.replaceAll("\r\n", "\n"), output, `${stderr}`);
  });

  it("holds the README's conversation", async (t) => {
    const [, text = ""] = /## The conversation[^`]*```\n([^`]*)\n```/.exec(read("README.md")) ?? [];
    const messages = text.split("\n").map((line) => JSON.parse(line));
    const { send, ended } = start(t);
    send(...messages.filter((_, i) => i % 2 === 0));
    const replies = messages.filter((_, i) => i % 2 === 1);
    assert.deepEqual(await ended(), { code: 0, signal: null, stderr: "", replies });
  });
});
