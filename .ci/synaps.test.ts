// Runs the extension in the real SynapsCLI: `synaps chat` in a fresh home, and a script on loopback
// in place of the model. Looks at what that is given, at the disk, the log and the processes.
// In a copy, make yours what is about hello (`hello`, its text and its schema); what is about the
// guard (the tests that run rm) goes, for some of it passes without one.

import assert from "node:assert/strict";
import { spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import {
  cpSync, existsSync, mkdirSync, mkdtempSync, readFileSync, readdirSync, rmSync, writeFileSync,
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
  install(join(base, "plugins", plugin), home);
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
  return { home, base, env, log, logged, remove: () => rmSync(home, { recursive: true }) };
}

/** The system prompt of the subagent, by which the model's script knows its requests. */
const SUBAGENT = "You are the subagent.";

type Chat = Awaited<ReturnType<typeof startChat>>;
/** Starts `synaps chat` with the plugin. */
async function startChat(install: Install) {
  const { home, base, env, log, logged, remove } = freshHome(install);
  const calls: Call[] = []; // what the model is to call next
  let offered: { function: { name: string; description: string; parameters: object } }[] = [];
  const model = createServer(async (request, response) => {
    const { messages, tools } = JSON.parse(Buffer.concat(await request.toArray()).toString());
    const isSubagent = messages[0].content === SUBAGENT;
    if (!isSubagent) offered = tools;
    const { role, content } = messages.at(-1);
    const call = role === "tool" ? undefined : calls.shift();
    const tool_calls = call && [{
      index: 0, id: `call_${messages.length}`, type: "function",
      function: { name: call.tool, arguments: JSON.stringify(call.args) },
    }];
    response.writeHead(200, { "content-type": "text/event-stream" });
    for (const event of [
      { choices: [{ index: 0, delta: tool_calls ? { tool_calls } : { content: "done" } }] },
      { choices: [{ index: 0, delta: {}, finish_reason: tool_calls ? "tool_calls" : "stop" }] },
      { choices: [], usage: { prompt_tokens: 1, completion_tokens: 1, total_tokens: 2 } },
    ]) response.write(`data: ${JSON.stringify(event)}\n\n`);
    response.end("data: [DONE]\n\n");
    if (role === "tool" && !isSubagent) model.emit("result", content);
  });
  await once(model.listen(0, "127.0.0.1"), "listening");
  const { port } = Object(model.address());
  const config = `model = local/mock\nprovider.local.url = http://127.0.0.1:${port}/v1\n`;
  writeFileSync(join(base, "config"), config);

  const synaps = spawn("synaps", ["chat"], { cwd: home, env });
  const closed = once(synaps, "close");
  let said = "";
  for (const stream of [synaps.stdout, synaps.stderr]) {
    stream.setEncoding("utf8").on("data", (text) => (said += text));
  }

  /** Lets the model call a tool, and a subagent then others; gives what the model gets back. */
  const call = async (...next: Call[]): Promise<string> => {
    calls.push(...next);
    const result = once(model, "result", { signal: AbortSignal.timeout(60_000) });
    synaps.stdin.write("go\n");
    const ended = closed.then(() => assert.fail(`synaps has ended: ${said}`));
    return String(await Promise.race([result, ended]));
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
    home, log, logged, call, stop, said: () => said,
    offered: (name: string) => offered.find((tool) => tool.function.name === name)?.function,
    quit: () => end(() => synaps.stdin.end("/quit\n")),
    kill: () => end(() => synaps.kill("SIGKILL")),
  };
}

const loaded = `Extension loaded extension=${plugin} hooks=${manifest.hooks.length}`;
const hello = (args: object): Call => ({ tool: `${plugin}_hello`, args });
const bash = (command: string): Call => ({ tool: "bash", args: { command } });

/** A directory with something in it. */
function marker(path: string): string {
  mkdirSync(path, { recursive: true });
  writeFileSync(join(path, "file"), "x");
  return path;
}

const test = (name: string, fn: () => Promise<void> | void) => it(name, { timeout: 120_000 }, fn);

// ---- The plugin, installed as the README says ---------------------------------------------------

const [, commands = ""] = /\nnpm ci\n(mkdir [^`]*)```/.exec(readme) ?? [];
const byReadme = (lines: string): Install => (_, HOME) => {
  run(["sh", "-ec", lines], { PATH: process.env.PATH, HOME });
};

for (const [how, install] of [
  ["linked", byReadme(commands)],
  ["copied", byReadme(commands.replace("ln -sfn", "cp -R"))],
] as const) {
  describe(`the plugin, ${how} as the README says`, () => {
    let chat: Chat;
    before(async () => (chat = await startChat(install)));
    after(() => chat.stop());

    test("is loaded", () => chat.logged(loaded));

    test("gives the model what its tool says, no JSON", async () => {
      assert.equal(await chat.call(hello({ name: "Ada" })), "Hello, Ada!");
    });

    test("offers the model its tool", () => {
      const properties = { name: { type: "string" } };
      assert.deepEqual(chat.offered(`${plugin}_hello`), {
        name: `${plugin}_hello`,
        description: "Greet someone by name",
        parameters: { type: "object", properties, required: ["name"] },
      });
    });

    test("tells the model what was wrong with an input, and serves on", async () => {
      const result = await chat.call(hello({ name: 42 }));
      assert.match(result, /Extension error: name is number, not a string$/);
      assert.equal(await chat.call(hello({})), "Hello, world!");
    });

    const refused = /^Tool call blocked by extension: rm -r of "[^"]*", which is no literal path/;
    test("blocks rm -rf outside /tmp, through each tool that runs it", async () => {
      const outside = marker(join(chat.home, "marker"));
      const command = `rm -rf ${outside}`;
      assert.match(await chat.call(bash(command)), refused);
      assert.match(await chat.call({ tool: "shell_start", args: { command } }), refused);
      await chat.call({ tool: "shell_start", args: { command: "bash" } });
      await until(() => "a session", () => chat.said().includes("[Session "));
      const [, session_id] = /\[Session (\S+) /.exec(chat.said()) ?? [];
      for (const input of [`${command}\n`, `${command}\\n`, `rm\\x20-rf\\x20${outside}\\r`]) {
        assert.match(await chat.call({ tool: "shell_send", args: { session_id, input } }), refused);
      }
      assert.ok(existsSync(join(outside, "file")));
      const input = "echo $((40 + 2))\\n";
      assert.match(await chat.call({ tool: "shell_send", args: { session_id, input } }), /\b42\b/);
    });

    test("lets rm -rf below /tmp run, and any harmless command", async () => {
      const below = marker(mkdtempSync("/tmp/synaps-test-"));
      await chat.call(bash(`rm -rf ${below}`));
      assert.ok(!existsSync(below));
      assert.equal(await chat.call(bash("echo hi")), "hi\n");
    });

    test("is not asked about what a subagent does (SynapsCLI 0.11.1)", async () => {
      const outside = marker(join(chat.home, "marker"));
      const args = { system_prompt: SUBAGENT, task: "go" };
      await chat.call({ tool: "subagent", args }, bash(`rm -rf ${outside}`));
      assert.ok(!existsSync(outside));
    });

    test("is gone after /quit", () => chat.quit());

    test("was never restarted, and has nothing to warn of", async () => {
      const lines = chat.log().split("\n"); // whole, after a normal end
      const traces = lines.filter((line) => line.includes("Extension hook trace"));
      assert.ok(traces.length > 0);
      assert.deepEqual(traces.filter((line) => !line.endsWith(" restart_count=0")), []);
      const bad = /\b(?:WARN|ERROR)\b/;
      assert.deepEqual(lines.filter((line) => bad.test(line) && line.includes(plugin)), []);
    });
  });
}

// ---- Other ways to live and die -----------------------------------------------------------------

describe("the plugin", () => {
  async function withChat(install: Install, use: (chat: Chat) => Promise<void>): Promise<void> {
    const chat = await startChat(install);
    try {
      await use(chat);
    } finally {
      await chat.stop();
    }
  }
  /** As a clone is: without what npm installs. */
  const bare: Install = (folder) => cpSync(root, folder, {
    recursive: true, filter: (path) => !["node_modules", ".git"].includes(basename(path)),
  });

  test("is gone after SynapsCLI is killed", async () => {
    await withChat(byReadme(commands), async (chat) => {
      assert.equal(await chat.call(hello({ name: "Ada" })), "Hello, Ada!");
      await chat.kill();
    });
  });

  const setUp: Install = (folder, home) => {
    bare(folder, home);
    const { PATH, HOME, USER = "", SHELL = "" } = process.env;
    const env = { PATH, HOME, USER, SHELL, SYNAPS_PLUGIN_DIR: folder };
    run(["bash", join(folder, manifest.setup)], env, folder, 600_000); // its time in the runtime
  };
  test("is set up in a bare clone, as after an install from git", async () => {
    await withChat(setUp, async (chat) => {
      assert.equal(await chat.call(hello({ name: "Ada" })), "Hello, Ada!");
      await chat.logged(loaded);
    });
  });

  const asGuide: Install = (folder, home) => {
    bare(folder, home);
    const permissions = ["tools.register", "hooks.before_tool_call"];
    writeFileSync(join(folder, ".synaps-plugin/plugin.json"), JSON.stringify({
      name: plugin, version: "0.1.0", description: "Hello-world extension",
      extension: { entry_point: "python3 main.py", extension_protocol_version: 1, permissions },
    }));
  };
  test("is refused with the guide's own manifest (SynapsCLI 0.11.1)", async () => {
    await withChat(asGuide, async (chat) => {
      assert.match(await chat.call(hello({ name: "Ada" })), /Unknown tool/);
      assert.equal(chat.offered(`${plugin}_hello`), undefined);
      await chat.logged("missing field `runtime`");
    });
  });

  test("is reloaded by the daemon", async () => {
    const { base, env, logged, remove } = freshHome(byReadme(commands));
    const daemon = spawn("synaps", ["daemon"], { env, stdio: "ignore" });
    const closed = once(daemon, "close");
    try {
      await until(() => "the daemon", () => existsSync(join(base, "run/daemon.sock")));
      const said = run(["synaps", "daemon", "reload-extension", plugin], env);
      assert.equal(said, `reloaded ${plugin}; 1 tool: ${plugin}:hello\n`);
      await logged(loaded, 2);
    } finally {
      daemon.kill();
      await closed;
      remove();
    }
  });
});
