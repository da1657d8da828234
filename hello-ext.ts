// hello-ext: a complete SynapsCLI extension in one file, with Node built-ins only. Its tool `hello`
// greets someone by name; its hook `before_tool_call` guards against a recursive rm outside /tmp.
// SynapsCLI starts this file as a process of its own and talks to it over stdin and stdout:
//   - JSON-RPC 2.0 in the frames of LSP: "Content-Length: N\r\n\r\n" and N bytes of UTF-8 JSON
//   - initialize comes first, then tool.call and hook.handle as they are needed, shutdown last
//   - stdout belongs to the frames; what a person should read goes to stderr, SynapsCLI's log
// Edit the constants, the tool, the hook and .synaps-plugin/plugin.json; keep the rest as it is.

import { posix } from "node:path";
import { finished } from "node:stream";

// ---- Constants, log and error texts -------------------------------------------------------------
const NAME = "hello-ext";
const VERSION = "0.1.0";
const MAX_HEADER_BYTES = 8 * 1024; // our own choice
const MAX_REQUEST_BYTES = 64 * 1024 * 1024; // our own choice
const MAX_REPLY_BYTES = 4 * 1024 * 1024; // the runtime takes a larger one for a dead process
const MAX_END_MS = 5000; // our own choice: after the end of the input or a shutdown
const ParseError = -32700; // this and the next three: JSON-RPC 2.0
const InvalidRequest = -32600;
const InvalidParams = -32602;
const InternalError = -32603;

const log = (text: string) => console.error(`[${NAME}] ${text.replace(/[\r\n]+/g, " ")}`);
/** Gives the first 200 code points of a text: slice alone could halve a character. */
const cut = (text: string) => [...text.slice(0, 400)].slice(0, 200).join("");
/** Gives a string cut and in quotes, of anything else the type: JSON.stringify throws on some. */
const show = (it: unknown) => (typeof it === "string" ? JSON.stringify(cut(it)) : typeof it);
const messageOf = (it: unknown) => (it instanceof Error ? cut(String(it.message)) : show(it));

// ---- Wire types: names are spelled as on the wire -----------------------------------------------
type Id = string | number | null;
/** What a hook may answer. An action that is not the hook's is ignored (runtime). */
type HookResult =
  | { action: "continue" } // every hook
  | { action: "block"; reason: string } // before_tool_call
  | { action: "confirm"; message: string } // before_tool_call: asks; without a screen, blocks
  | { action: "modify"; input: unknown } // before_tool_call
  | { action: "replace"; output: string } // after_tool_call, with tools.transform_output
  | { action: "inject"; content: string } // before_message, on_session_start
  | { action: "context_phase"; phase: string }; // on_message_complete, with session.lifecycle
/** The params of hook.handle, trusted once `kind` is a string; unused: null (guide: missing). */
type HookEvent = {
  kind: string;
  tool_name?: string | null;
  tool_input?: unknown;
  tool_output?: string | null; // in after_tool_call only
  message?: string | null; // in before_message: what the user wrote
};
const isObject = (value: unknown): value is Record<string, unknown> =>
  typeof value === "object" && value !== null && !Array.isArray(value);
/** Gives an object as it is, and {} for anything else. */
const members = (value: unknown) => (isObject(value) ? value : {});
const isId = (value: unknown): value is Id =>
  (typeof value === "number" && Math.abs(value) < 2 ** 53) || // larger ones change by reading them
  (typeof value === "string" && value.length <= 1024) || value === null;
const isHookEvent = (value: unknown): value is HookEvent => typeof members(value).kind === "string";

// ---- Framing ------------------------------------------------------------------------------------
let wake = () => {};
process.stdin.on("readable", () => wake());
process.stdout.on("drain", () => wake());
finished(process.stdin, () => wake());

/** Waits for a slow reader, then for a chunk; null is the input's end. Throws as stdin does. */
async function readChunk(): Promise<Buffer | null> {
  for (;;) {
    const chunk: Buffer | null = process.stdout.writableNeedDrain ? null : process.stdin.read();
    if (process.stdin.errored) throw process.stdin.errored;
    if (chunk || process.stdin.readableEnded || process.stdin.destroyed) return chunk;
    await new Promise<void>((resolve) => (wake = resolve));
  }
}

/** Takes a header; gives the length of the body in bytes. Throws where there is not one. */
function contentLength(header: string): number {
  const lines = header.split("\n").filter((line) => /^content-length[ \t]*:/i.test(line));
  const values = lines.map((line) => /^[^:]*:\s*([0-9]+)\s*$/.exec(line)?.[1]);
  const [length = NaN, ...others] = values.map(Number);
  if (length <= MAX_REQUEST_BYTES && others.every((other) => other === length)) return length;
  throw new Error(`no one Content-Length of up to 64 MiB: ${show(header.trim())}`);
}

/** What has come of a frame: of its header, and once that is whole, of its body in bytes. */
let part: { header: string; body?: Buffer; filled: number } = { header: "", filled: 0 };

/** Takes a chunk; gives the body of each frame that ends in it. Throws where a frame is broken. */
function* recv(chunk: Buffer): Generator<Buffer> {
  while (chunk.length > 0) {
    if (!part.body) {
      const lineEnd = chunk.indexOf("\n") + 1 || chunk.length;
      part.header += chunk.toString("latin1", 0, lineEnd);
      chunk = chunk.subarray(lineEnd);
      if (part.header.length > MAX_HEADER_BYTES) throw new Error("header over 8 KiB");
      if (part.header === "\n" || part.header === "\r\n") part.header = ""; // between frames
      if (!part.header.endsWith("\n\r\n") && !part.header.endsWith("\n\n")) continue;
      part.body = Buffer.allocUnsafe(contentLength(part.header));
    }
    const copied = chunk.copy(part.body, part.filled);
    chunk = chunk.subarray(copied);
    part.filled += copied;
    if (part.filled < part.body.length) continue;
    yield part.body;
    part = { header: "", filled: 0 };
  }
}

/** Takes a response; gives its frame, header and body in one piece. Throws if it is over 4 MiB. */
function frame(response: { id: Id; result: unknown } | { id: Id; error: object }): string {
  const json = JSON.stringify({ jsonrpc: "2.0", ...response });
  const bytes = Buffer.byteLength(json);
  if (bytes > MAX_REPLY_BYTES) throw new Error(`a reply of ${bytes} bytes is over 4 MiB`);
  // Half a surrogate pair, escaped as \ud83d, is no JSON to the runtime; \ufffd is as long.
  const body = json.replace(/\\(?:ud...|.)/g, (escape) => (escape.length > 2 ? "\\ufffd" : escape));
  return `Content-Length: ${bytes}\r\n\r\n${body}`;
}
const failure = (id: Id, code: number, message: string) => frame({ id, error: { code, message } });

// stdout belongs to the frames: all else goes to stderr, console too. Let no child inherit it.
const send = process.stdout.write.bind(process.stdout);
Object.assign(process.stdout, { write: process.stderr.write.bind(process.stderr) });

// ---- The tool: to add one, add an entry ---------------------------------------------------------
/** `call` gets the input as the model wrote it, gives what the model sees (a string), and
 * has 120 seconds. Aborted or timed out, it may still run while the next one comes. */
type Call = (input: Record<string, unknown>) => string | Promise<string>;
type Tool = { name: string; description: string; input_schema: object; call: Call };
/** What a tool throws when its input is wrong: the model sees the message and can try again. */
class InvalidInput extends Error {}
const tools: Tool[] = [{
  name: "hello", // to the model: hello-ext_hello
  description: "Greet someone by name",
  input_schema: { type: "object", properties: { name: { type: "string" } }, required: ["name"] },
  call: (input) => {
    const name = input.name ?? "world";
    if (typeof name !== "string") throw new InvalidInput(`name is ${show(name)}, not a string`);
    return `Hello, ${name}!`;
  },
}];

// ---- The guard's rule: to cut it out, see the README --------------------------------------------
const SEPARATOR = /[;\n]|(?<![<>])[&|](?!>)/; // between two commands, unlike & in 2>&1 and &>log
const HIDING = /["'`\\(]|\$[{[]/; // may hide a separator: rm "a;b" -r
const REDIRECTION = /(?:(?<!\S)\d+)?&?[<>]+(?:&[ \t]*-|[&|]?[ \t]*[^\s<>&|]*)/g; // > log, 2>&1
const BLANK = /\\(?:[nt]|[xu][\da-fA-F]+|[0-7]+)|\$(?:\{?IFS|\d)|[<>]&[ \t]*-/g; // rm$IFS-r
const GIT = /(?:^|[;&|\n({]|\b(?:do|then|else|sudo|xargs)|-0)\s*git[ \t]+/; // git as the command
const RM = new RegExp(`(?<![\\w.-]|${GIT.source})rm(?![\\w./-])`); // rm, no --rm, rm.txt, git rm
const RECURSIVE = /(?<![\w./-])-(?:[dfivIPWx]*[rR]|-r)/; // -r, -fR, --recursive
const NOT_PLAIN = /["'\\$`*?[\]{}()~#!]|[^\S \t\n]|[\0-\x08\x7f]/; // may stand for something else

/** Takes shell text; gives its commands with an rm -r in them, however it is spelled or wrapped. */
function findRemovals(text: string): string[] {
  const commands = HIDING.test(text) ? [text] : text.split(SEPARATOR);
  return commands.filter((command) => {
    const quoted = command.replace(BLANK, ","); // a comma, so that git\nrm is no git rm
    const spellings = [quoted.replace(/\\\n|\$?["']|\\/g, ""), quoted.replace(/["'\\]/g, " ")];
    return spellings.some((it) => it.split(RM).slice(1).some((rest) => RECURSIVE.test(rest)));
  });
}

/** Takes a command; gives what its rm names, and nothing where rm is not its first word. */
function operandsOf(command: string): string[] {
  const [rm = "", ...words] = command.replace(REDIRECTION, " ").trim().split(/[ \t]+/);
  if (!/^(?:\/\S*\/)?rm$/.test(rm)) return [];
  const end = words.includes("--") ? words.indexOf("--") : words.length;
  return words.filter((word, i) => i > end || !/^-./.test(word));
}

/** Linux takes no path of 4,096 bytes or more, and normalize can take quadratic time. */
const isBelowTmp = (path: string) => path.length < 4096 && /^\/tmp\/./.test(posix.normalize(path));

// ---- The hooks: to add one, add its handler, and subscribe to it in plugin.json -----------------
/** What shell_send types: the runtime decodes \n and \x20. All control characters are dropped. */
function decodeKeys(text: string): string {
  const keys = new Map([["n", "\n"], ["r", "\n"], ["t", "\t"], ["\\", "\\"]]);
  const escape = /\\(?:x[89a-fA-F][0-9a-fA-F]|x([0-9a-fA-F]{1,2})|([nrtab0e\\]))/g; // \x20, \n
  return text.replace(escape, (_, x, key) => keys.get(key) ?? String.fromCharCode(parseInt(x, 16)))
    .replace(/\r/g, "\n").replace(/[\0-\x08\x0b-\x1f\x7f]/g, "");
}

/** The tools that take shell text, and its field (runtime). */
const fields = new Map([["bash", "command"], ["shell_start", "command"], ["shell_send", "input"]]);

function beforeToolCall({ tool_name, tool_input }: HookEvent): HookResult {
  const field = fields.get(tool_name ?? "");
  const input = (field && members(tool_input)[field]) ?? "";
  if (typeof input !== "string") throw new Error(`the command is ${show(input)}, not a string`);
  let text = input;
  if (tool_name === "shell_send") text = decodeKeys(input);
  if (tool_name === "shell_start") text = input.replace(/[\s\x85;&|<>]+/g, " "); // has no shell
  const removals = findRemovals(text);
  if (removals.length === 0) return { action: "continue" };
  const operands = NOT_PLAIN.test(text) ? [[]] : removals.map(operandsOf);
  const outside = operands.flat().find((path) => path.startsWith("/") && !isBelowTmp(path));
  const advice = "name literal paths below /tmp, or ask the user to run it";
  if (outside) return { action: "block", reason: `rm -r of ${show(outside)}: ${advice}` };
  const isBelow = operands.every((paths) => paths.length > 0 && paths.every(isBelowTmp));
  if (isBelow) return { action: "continue" };
  return { action: "confirm", message: `rm -r, not plainly below /tmp: ${show(input)}` };
}

/** A handler has 5 seconds (runtime). If it throws, a tool call is blocked. Permissions:
 * *_tool_call tools.intercept, on_session_* session.lifecycle, all others privacy.llm_content. */
type Handler = (event: HookEvent) => HookResult | Promise<HookResult>;
const hooks = new Map<string, Handler>([["before_tool_call", beforeToolCall]]);

// ---- Dispatch -----------------------------------------------------------------------------------
const capabilities = { tools, hooks: [...hooks.keys()].map((name) => ({ name })) };
let isShutDown = false; // from the reply to shutdown on

/** Takes a method and its params; gives the result or a promise. Throws what a handler throws. */
function handle(method: string, params: unknown): unknown {
  switch (method) {
    case "initialize": return { name: NAME, version: VERSION, protocol_version: 1, capabilities };
    case "tool.call": return callTool(members(params));
    case "hook.handle": return callHook(params);
    case "info.get": case "shutdown": return {}; // info.get: runtime, once after initialize
  }
  log(`unknown method ${show(method)}`);
  return {}; // the guide: no MethodNotFound
}

async function callTool({ name, input }: Record<string, unknown>): Promise<unknown> {
  const tool = tools.find((tool) => tool.name === name);
  if (!tool) throw new InvalidInput(`name is ${show(name)}, which is no tool of ${NAME}`);
  if (!isObject(input ?? {})) throw new InvalidInput("input is no object");
  process.stdout.uncork(); // it may take its time, or end the process
  const text = await tool.call(members(input));
  return { content: text, output: text }; // the runtime reads content, the guide output
}

/** Takes the params of hook.handle, the runtime's or the guide's; gives the event in them. */
function eventOf(params: unknown): HookEvent | undefined {
  if (isHookEvent(params)) return params;
  const { hook, context } = members(params);
  const { tool, input, ...own } = members(context);
  const tool_name = own.tool_name ?? tool ?? "bash";
  const guides = { ...own, kind: hook, tool_name, tool_input: own.tool_input ?? input };
  return isHookEvent(guides) ? guides : undefined;
}

async function callHook(params: unknown): Promise<unknown> {
  const event = eventOf(params);
  const handler = hooks.get(event?.kind ?? "");
  if (!event || !handler) return goOn(params);
  const result = await handler(event);
  return result.action === "continue" ? goOn(params) : result;
}
const goOn = (params: unknown) => (isHookEvent(params) ? { action: "continue" } : {}); // guide: {}

/** Takes a request; gives the frame of its reply. What a handler throws is caught here. */
async function reply(id: Id, method: string, params: unknown): Promise<string> {
  try {
    return frame({ id, result: await handle(method, params) });
  } catch (error) {
    const message = messageOf(error);
    const isInvalid = method === "tool.call" && error instanceof InvalidInput;
    if (isInvalid) return failure(id, InvalidParams, message);
    log(`${method} failed: ${message}`);
    if (method !== "hook.handle") return failure(id, InternalError, message);
    const isToolCall = eventOf(params)?.kind === "before_tool_call"; // an error would let it run
    return frame({ id, result: isToolCall ? { action: "block", reason: message } : goOn(params) });
  }
}

const utf8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }); // a BOM is kept: no JSON
/** Takes the body of a frame; writes the reply, where one is due, as soon as it is there. */
async function serve(body: Buffer): Promise<void> {
  let message: Record<string, unknown>;
  try {
    message = members(JSON.parse(utf8.decode(body)));
  } catch (error) {
    return void send(failure(null, ParseError, messageOf(error)));
  }
  const { id = null, method, params } = message;
  if (method === undefined && ("result" in message || "error" in message)) return; // a response
  if (!isId(id)) return void send(failure(null, InvalidRequest, "id is no id of JSON-RPC"));
  if (typeof method !== "string") return void send(failure(id, InvalidRequest, "no method"));
  const response = await reply(id, method, params);
  if ("id" in message && !isShutDown) send(response); // JSON-RPC: never to a notification
  if (method === "shutdown") isShutDown = true;
}

// ---- Main ---------------------------------------------------------------------------------------
const working = new Set<Promise<void>>(); // what is asked and not answered yet

/** Takes a chunk; serves its frames. What settles at once is answered in order. */
async function serveChunk(chunk: Buffer): Promise<void> {
  process.stdout.cork(); // all replies to a chunk in one write, which costs more than a reply
  for (const body of recv(chunk)) {
    const served = serve(body).finally(() => working.delete(served));
    working.add(served);
    await new Promise<void>((resolve) => process.nextTick(resolve)); // and no longer: it may hang
    if (isShutDown) break;
  }
  process.stdout.uncork();
}

async function main(): Promise<void> {
  process.exitCode = 1; // until everything asked is answered
  process.stderr.on("error", () => {}); // nobody reads: go on
  process.stdout.on("error", (error) => process.stdin.destroy(error)); // nobody reads: end
  try {
    if (process.stdin.isTTY) throw new Error("is started by SynapsCLI; to see it work: npm test");
    for (let chunk; !isShutDown && (chunk = await readChunk()); ) await serveChunk(chunk);
    if (part.header.trim() && !isShutDown) throw new Error("input ended inside a frame");
  } catch (error) {
    return log(messageOf(error)); // a broken frame too: the next could start anywhere
  } finally {
    process.stdout.uncork();
    process.stdin.destroy();
    setTimeout(() => send("", () => process.exit()), MAX_END_MS).unref();
  }
  if (!isShutDown) await Promise.all(working);
  if (working.size > 0) return;
  send("", (error) => (error ? log(messageOf(error)) : (process.exitCode = 0)));
}
void main();
