// Runs the extension in the real SynapsCLI: `synaps chat` in a fresh home, and a script on loopback
// in place of the model. Looks at what that is given, at the disk, the log and the processes.
// In a copy, make the constants of "The tool hello" yours, and `main` if you rename that file; cut
// "The guard" out in one piece. All else holds for any extension.

import assert from "node:assert/strict";
import { spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import {
  cpSync, existsSync, mkdtempSync, readFileSync, readdirSync, rmSync, symlinkSync, writeFileSync,
} from "node:fs";
import { createServer } from "node:http";
import { basename, delimiter, dirname, join } from "node:path";
import { after, before, describe, it } from "node:test";
import { setTimeout as delay } from "node:timers/promises";
import { fileURLToPath } from "node:url";

const { stdout: version } = spawnSync("synaps", ["--version"], { encoding: "utf8" });
if (!version) {
  console.error("no synaps on the PATH; to get it: cargo install synaps --version 0.11.1 --locked");
  process.exit(1);
}
console.log(version.trim());

// ---- Harness ------------------------------------------------------------------------------------

const root = fileURLToPath(new URL("..", import.meta.url));
const readme = readFileSync(join(root, "README.md"), "utf8");
const main = "hello-ext.ts";
const json = readFileSync(join(root, ".synaps-plugin/plugin.json"), "utf8");
const { extension: manifest, name: plugin } = JSON.parse(json);

type Call = { tool: string; args: object };
/** Puts the plugin into its folder, in a fresh home. */
type Install = (folder: string, home: string) => void;

/** Waits for what comes at its own pace, a line of the log say; `ms` is its deadline. */
async function until(what: () => string, holds: () => unknown, ms = 20_000): Promise<void> {
  for (const end = Date.now() + ms; !holds(); await delay(10)) {
    if (Date.now() > end) assert.fail(`waited in vain for ${what()}`);
  }
}

/** Runs a command to its end; gives its stdout. Fails when it does not succeed. */
function run(line: string[], env: NodeJS.ProcessEnv, cwd = root, timeout = 60_000): string {
  const [program = "", ...args] = line;
  const result = spawnSync(program, args, { env, cwd, timeout, encoding: "utf8" });
  assert.equal(result.status, 0, result.stderr);
  return result.stdout;
}

/** The processes of the extension that a process has started; without one, all that run. */
function extensions(parent?: number): number[] {
  const { stdout } = spawnSync("ps", ["-A", "-o", "pid=,ppid=,stat=,args="], { encoding: "utf8" });
  const all = Array.from(stdout.matchAll(/^ *(\d+) +(\d+) +([^Z ]\S*) +(.*)$/gm));
  return all.filter(([, , ppid, , args]) => args?.includes(manifest.args.at(-1)) &&
    (parent === undefined || ppid === `${parent}`)).map(([, pid]) => Number(pid));
}

/** Makes a fresh home outside /tmp, and gives it with what SynapsCLI is started with. */
function freshHome(install: Install) {
  const home = mkdtempSync("/var/tmp/synaps-test-");
  const base = join(home, ".synaps-cli");
  const remove = () => rmSync(home, { recursive: true, maxRetries: 9 }); // one may write as it ends
  try {
    install(join(base, "plugins", plugin), home);
  } catch (error) {
    remove();
    throw error;
  }
  const env = {
    // `node` in the manifest is the Node that runs the tests.
    PATH: [dirname(process.execPath), process.env.PATH].join(delimiter), HOME: home,
    SYNAPS_BASE_DIR: base, SYNAPS_EXTENSIONS_TRACE: "1", LANG: "C.UTF-8", TERM: "dumb",
  };
  const log = () => readdirSync(base).filter((name) => name.startsWith("synaps.log"))
    .map((name) => readFileSync(join(base, name), "utf8")).join("").replace(/\x1b\[[0-9;]*m/g, "");
  /** Waits for a line in the log; when it does not come, what the log warns of tells why. */
  const logged = (text: string, times = 1) => until(
    () => `${text} in the log of ${readdirSync(join(base, "plugins"))}: ${log().match(/WARN.*/g)}`,
    () => log().split(text).length > times,
  );
  return { home, base, env, log, logged, remove };
}

/** The system prompt of the subagent, by which the model's script knows its requests. */
const SUBAGENT = "You are the subagent.";

/** What the model is sent in one request. */
type Sent = {
  messages: { role: string; content: string }[];
  tools: { function: { name: string; description: string; parameters: object } }[];
};

/** A script on loopback in place of the model: it makes the calls that it is given. */
async function startModel(base: string) {
  const calls: Call[] = []; // what the model is to call next
  const sent: Sent[] = []; // what it was sent
  const server = createServer(async (request, response) => {
    const body: Sent = JSON.parse(Buffer.concat(await request.toArray()).toString());
    sent.push(body);
    const { role = "", content = "" } = body.messages.at(-1) ?? {};
    const call = role === "tool" ? undefined : calls.shift();
    const tool_calls = call && [{
      index: 0, id: `call_${body.messages.length}`, type: "function",
      function: { name: call.tool, arguments: JSON.stringify(call.args) },
    }];
    response.writeHead(200, { "content-type": "text/event-stream" });
    for (const event of [
      { choices: [{ index: 0, delta: tool_calls ? { tool_calls } : { content: "done" } }] },
      { choices: [{ index: 0, delta: {}, finish_reason: tool_calls ? "tool_calls" : "stop" }] },
      { choices: [], usage: { prompt_tokens: 1, completion_tokens: 1, total_tokens: 2 } },
    ]) response.write(`data: ${JSON.stringify(event)}\n\n`);
    response.end("data: [DONE]\n\n");
    const isSubagent = body.messages[0]?.content === SUBAGENT;
    if (role === "tool" && !isSubagent) server.emit("result", content);
  });
  await once(server.listen(0, "127.0.0.1"), "listening");
  const { port } = Object(server.address());
  const config = `model = local/mock\nprovider.local.url = http://127.0.0.1:${port}/v1\n`;
  writeFileSync(join(base, "config"), config);
  /** The result of the next call of a tool, as the model gets it. */
  const result = async (): Promise<string> =>
    String(await once(server, "result", { signal: AbortSignal.timeout(60_000) }));
  return { calls, sent, result, close: () => server.close() };
}

type Chat = Awaited<ReturnType<typeof startChat>>;
/** Starts `synaps chat` with the plugin. */
async function startChat(install: Install) {
  const { home, base, env, log, logged, remove } = freshHome(install);
  const model = await startModel(base);
  const synaps = spawn("synaps", ["chat"], { cwd: home, env });
  const closed = once(synaps, "close");
  let said = "";
  for (const stream of [synaps.stdout, synaps.stderr]) {
    stream.setEncoding("utf8").on("data", (text) => (said += text));
  }

  /** Lets the model call a tool, and a subagent then others; gives what the model gets back. */
  const call = async (...next: Call[]): Promise<string> => {
    model.calls.push(...next);
    const result = model.result();
    synaps.stdin.write("go\n");
    return Promise.race([result, closed.then(() => assert.fail(`synaps has ended: ${said}`))]);
  };
  /** Ends SynapsCLI in some way; within ten seconds no process of the extension is left. */
  const end = async (how: () => void) => {
    const pids = extensions(synaps.pid);
    assert.equal(pids.length, 1, "one process of the extension runs");
    how();
    await closed;
    const left = () => extensions().filter((pid) => pids.includes(pid));
    try {
      await until(() => "the extension to end", () => left().length === 0, 10_000);
    } finally {
      for (const pid of left()) process.kill(pid, "SIGKILL");
    }
  };
  const stop = async () => {
    synaps.kill("SIGKILL");
    await closed;
    model.close();
    remove();
  };
  return {
    home, log, logged, call, stop, said: () => said, sent: () => model.sent,
    quit: () => end(() => synaps.stdin.end("/quit\n")),
    kill: () => end(() => synaps.kill("SIGKILL")),
  };
}

const loaded = `Extension loaded extension=${plugin} hooks=${manifest.hooks.length}`;
const test = (name: string, fn: () => Promise<void> | void, skip: string | boolean = false) =>
  it(name, { timeout: 120_000, skip }, fn);

const [, commands = ""] = /```sh\n(mkdir [^`]*)```/.exec(readme) ?? [];
/** Runs lines of the README in the fresh home: they put the folder, or a copy, where it belongs. */
const byReadme = (lines: string): Install => (_, HOME) => {
  run(["sh", "-ec", lines], { PATH: process.env.PATH, HOME });
};
const linked = byReadme(commands);
const copied = byReadme(commands.replace("ln -sfn", "cp -R"));
/** As a clone is: without what npm installs. */
const bare: Install = (folder) => cpSync(root, folder, {
  recursive: true, filter: (path) => !["node_modules", ".git"].includes(basename(path)),
});
/** A copy with its packages, in which one text stands in place of another that is there once. */
const edited = (from: string, to: string, extension = manifest): Install => (folder, home) => {
  bare(folder, home);
  symlinkSync(join(root, "node_modules"), join(folder, "node_modules"));
  const parts = readFileSync(join(folder, main), "utf8").split(from);
  assert.equal(parts.length, 2, `${from} has to be in ${main} once`);
  writeFileSync(join(folder, main), parts.join(to));
  const text = JSON.stringify({ ...JSON.parse(json), extension });
  writeFileSync(join(folder, ".synaps-plugin/plugin.json"), text);
};

async function use<T extends { stop: () => unknown }>(started: Promise<T>, fn: (it: T) => unknown) {
  const it = await started;
  try {
    await fn(it);
  } finally {
    await it.stop();
  }
}

// ---- The tool hello -----------------------------------------------------------------------------

const tool = `${plugin}_hello`; // as the model knows it
const right = { tool, args: { name: "Ada" } }; // a call that works, and what the model gets
const answer = "Hello, Ada!";
const wrong = { tool, args: { name: 42 } }; // a call that throws, and what the model gets
const complaint = /Extension error: name is number, not a string$/;

// ---- The guard ----------------------------------------------------------------------------------

/** Starts the screen of SynapsCLI in tmux, with the plugin. */
async function startScreen(install: Install) {
  const { home, base, env, log, logged, remove } = freshHome(install);
  const model = await startModel(base);
  const tmux = (...args: string[]) => run(["tmux", "-S", join(home, "tmux"), ...args], env, home);
  const shown = () => tmux("capture-pane", "-p");
  /** Presses a key until something is shown, or no longer: at first a question ignores keys. */
  const press = (key: string, what: string, holds: () => boolean) => {
    let pressed = 0;
    return until(() => `${what} after ${key}:\n${shown()}`, () => {
      if (holds()) return true;
      if (Date.now() > pressed + 500) {
        tmux("send-keys", key);
        pressed = Date.now();
      }
      return false;
    });
  };
  /** Lets the model call a tool. */
  const call = async (next: Call) => {
    model.calls.push(next);
    const already = model.sent.length;
    tmux("send-keys", "go");
    await press("Enter", "a request to the model", () => model.sent.length > already);
  };
  const stop = async () => {
    model.close();
    tmux("kill-server");
    spawnSync("synaps", ["daemon", "stop"], { env }); // else it waits ten seconds for a screen
    await until(() => "the daemon to end", () => !existsSync(join(base, "run/daemon.sock")));
    remove();
  };
  try {
    tmux("new-session", "-d", "-x", "120", "-y", "40", "synaps");
    await until(() => `the prompt:\n${shown()}`, () => shown().includes("enter send"));
  } catch (error) {
    await stop();
    throw error;
  }
  return { home, log, logged, shown, press, call, result: model.result, stop };
}

describe("the guard", () => {
  const bash = (command: string): Call => ({ tool: "bash", args: { command } });
  const advice = "name literal paths below /tmp, or ask the user to run it";
  const blocked = (path: string) =>
    `Tool call blocked by extension: rm -r of "${path}": ${advice}`;
  const denied = (command: string) => "Tool call blocked by extension: Tool call confirmation " +
    `denied: rm -r, not plainly below /tmp: "${command}"`;
  /** A directory with something in it. */
  const marker = (path: string): string => {
    cpSync(join(root, ".synaps-plugin"), path, { recursive: true });
    return path;
  };

  test("lets rm run below /tmp, blocks it elsewhere, and without a screen denies the rest", () =>
    use(startChat(linked), async (chat) => {
      const below = marker(mkdtempSync("/tmp/synaps-test-"));
      await chat.call(bash(`rm -rf ${below}`));
      assert.ok(!existsSync(below));
      const outside = marker(join(chat.home, "marker"));
      assert.equal(await chat.call(bash(`rm -rf ${outside}`)), blocked(outside));
      const asked = `cd ${chat.home} && rm -rf marker`;
      assert.equal(await chat.call(bash(asked)), denied(asked));
      assert.ok(existsSync(join(outside, "plugin.json")));
      assert.equal(await chat.call(bash("echo hi")), "hi\n");
    }));

  test("reads what shell_start and shell_send are given, as they take it", () =>
    use(startChat(linked), async (chat) => {
      const outside = marker(join(chat.home, "marker"));
      const command = `rm -rf ${outside}`;
      const start = (command: string) => chat.call({ tool: "shell_start", args: { command } });
      assert.equal(await start(command), blocked(outside));
      await start("bash");
      await until(() => "a session", () => chat.said().includes("[Session "));
      const [, session_id] = /\[Session (\S+) /.exec(chat.said()) ?? [];
      const type = (input: string) =>
        chat.call({ tool: "shell_send", args: { session_id, input } });
      for (const input of [`${command}\n`, `${command}\\n`, `rm\\x20-rf\\x20${outside}\\r`]) {
        assert.equal(await type(input), blocked(outside));
      }
      assert.ok(existsSync(join(outside, "plugin.json")));
      assert.match(await type("echo $((40 + 2))\\n"), /\b42\b/);
    }));

  test("is not asked about what a subagent does (SynapsCLI 0.11.1)", () =>
    use(startChat(linked), async (chat) => {
      const outside = marker(join(chat.home, "marker"));
      const args = { system_prompt: SUBAGENT, task: "go" };
      await chat.call({ tool: "subagent", args }, bash(`rm -rf ${outside}`));
      assert.ok(!existsSync(outside));
    }));

  const noScreen = spawnSync("tmux", ["-V"]).status !== 0 && "needs tmux";
  const isAsked = (shown: string) => shown.includes("Confirm tool call");

  test("asks on the screen as the README shows, and does as the user says", () =>
    use(startScreen(linked), async ({ home, shown, press, call, result }) => {
      const folder = marker(join(home, "node_modules"));
      const [, question = ""] = /```\n([^`]*)```/.exec(readme) ?? [];
      const lines = question.split("\n").filter((line) => line !== "");
      for (const key of ["n", "y"]) {
        const told = result();
        await call(bash("rm -rf node_modules"));
        await until(() => `${question} in ${shown()}`, () =>
          isAsked(shown()) && lines.every((line) => shown().includes(line)));
        await press(key, "no question", () => !isAsked(shown()));
        const text = await told;
        if (key === "n") assert.equal(text, denied("rm -rf node_modules"));
        assert.equal(existsSync(folder), key === "n");
      }
    }), noScreen);

  test("is there while a tool hangs that the user has given up", () => {
    const atWork = "await tool.call(members(input))";
    const hangs = edited(atWork, "await new Promise<string>(() => log(`at work`))");
    return use(startScreen(hangs), async ({ home, shown, press, call, result, logged, log }) => {
      const outside = marker(join(home, "marker"));
      await call(right);
      await logged("at work");
      await press("Escape", "an aborted call", () => shown().includes("aborted"));
      const told = result();
      await call(bash(`rm -rf ${outside}`));
      assert.equal(await told, blocked(outside));
      assert.ok(existsSync(outside));
      assert.ok(!log().includes("timed out"));
    });
  }, noScreen);
});

// ---- The plugin, from here on any ---------------------------------------------------------------

for (const [how, install] of [["linked", linked], ["copied", copied]] as const) {
  describe(`the plugin, ${how} as the README says`, () => {
    let chat: Chat;
    before(async () => (chat = await startChat(install)));
    after(() => chat.stop());

    test("is loaded", () => chat.logged(loaded));

    test("gives the model what its tool says, no JSON", async () => {
      assert.equal(await chat.call(right), answer);
    });

    test("offers the model its tool, as it told SynapsCLI", () => {
      const [request] = chat.sent();
      const offered = request?.tools.find(({ function: { name } }) => name === tool);
      assert.ok(offered?.function.description);
      assert.equal(Object(offered.function.parameters).type, "object");
    });

    test("tells the model what was wrong with an input, and serves on", async () => {
      assert.match(await chat.call(wrong), complaint);
      assert.equal(await chat.call(right), answer);
    });

    test("is gone after /quit", () => chat.quit());

    test("was never restarted, and has nothing to warn of", async () => {
      const lines = chat.log().split("\n"); // whole, after a normal end
      const bad = /\b(?:WARN|ERROR)\b|restart_count=[^0]/;
      assert.deepEqual(lines.filter((line) => bad.test(line) && line.includes(plugin)), []);
    });
  });
}

describe("the plugin", () => {
  test("is gone after SynapsCLI is killed", () => use(startChat(linked), async (chat) => {
    assert.equal(await chat.call(right), answer);
    await chat.kill();
  }));

  const setUp: Install = (folder, home) => {
    bare(folder, home);
    const { PATH, HOME, USER = "", SHELL = "" } = process.env;
    const env = { PATH, HOME, USER, SHELL, SYNAPS_PLUGIN_DIR: folder };
    run(["bash", join(folder, manifest.setup)], env, folder, 600_000); // its time in the runtime
  };
  test("is set up in a bare clone, as after an install from git", () =>
    use(startChat(setUp), async (chat) => {
      assert.equal(await chat.call(right), answer);
      await chat.logged(loaded);
    }));

  const dispatch = "// ---- Dispatch -";
  // In a copy that has this hook, its handler is replaced here; a second subscription does no harm.
  const inject = '({ message }) => ({ action: "inject", content: `In verse: ${message}` })';
  const injects = edited(dispatch, `hooks.set("before_message", ${inject});\n${dispatch}`, {
    ...manifest,
    hooks: [...manifest.hooks, { hook: "before_message" }],
    permissions: [...manifest.permissions, "privacy.llm_content"],
  });
  test("injects into the first request of a turn, not after a tool's result", () =>
    use(startChat(injects), async (chat) => {
      assert.equal(await chat.call(right), answer);
      const has = chat.sent().map((body) => JSON.stringify(body).includes("In verse: go"));
      assert.deepEqual(has, [true, false]);
    }));

  test("is reloaded by the daemon", async () => {
    const { base, env, logged, remove } = freshHome(linked);
    const daemon = spawn("synaps", ["daemon"], { env, stdio: "ignore" });
    const closed = once(daemon, "close");
    try {
      await until(() => "the daemon", () => existsSync(join(base, "run/daemon.sock")));
      assert.match(run(["synaps", "daemon", "reload-extension", plugin], env), /^reloaded /);
      await logged(loaded, 2);
    } finally {
      daemon.kill();
      await closed;
      remove();
    }
  });
});
