// hello-ext: a complete SynapsCLI extension in one file, with Node built-ins only. Its tool `hello`
// greets someone by name; its hook `before_tool_call` blocks a recursive rm outside /tmp.
// SynapsCLI starts this file as a process of its own and talks to it over stdin and stdout:
//   - JSON-RPC 2.0 in the frames of LSP: "Content-Length: N\r\n\r\n" and N bytes of UTF-8 JSON
//   - initialize comes first, then tool.call and hook.handle one at a time, shutdown last
//   - stdout belongs to the frames; what a person should read goes to stderr, SynapsCLI's log
//
// To make it yours, edit the constants, the tool and the hook, and .synaps-plugin/plugin.json with
// them. Cut the guard's rule out whole. Keep the framing, the dispatch and main as they are.

import { Console } from "node:console";
import { once } from "node:events";
import { posix } from "node:path";
Object.assign(console, new Console(process.stderr)); // so that console.log cannot break a frame

// ---- Constants, log and error texts -------------------------------------------------------------
const NAME = "hello-ext";
const VERSION = "0.1.0";
const MAX_HEADER_BYTES = 8 * 1024, MAX_REQUEST_BYTES = 64 * 1024 * 1024; // our own choice
const MAX_REPLY_BYTES = 4 * 1024 * 1024; // the runtime takes a larger one for a dead process
// JSON-RPC 2.0
const ParseError = -32700, InvalidRequest = -32600, InvalidParams = -32602, InternalError = -32603;
const log = (text: string) => console.error(`[${NAME}] ${text.replace(/[\r\n]+/g, " ")}`);
/** The first 200 code points, in 400 UTF-16 units at most: slice(0, 200) could halve a pair. */
const cut = (text: string) => [...text.slice(0, 400)].slice(0, 200).join("");
/** A string in quotes, cut; of anything else the type (JSON.stringify throws on a deep value). */
const show = (value: unknown) => typeof value === "string" ? JSON.stringify(cut(value))
  : value === null ? "null" : Array.isArray(value) ? "array" : typeof value;
const messageOf = (e: unknown) => (e instanceof Error ? cut(String(e.message)) : show(e));

// ---- Wire types: names are spelled as on the wire -----------------------------------------------
type Id = string | number | null;
/** What each hook may answer besides `continue`  // its permission (one more for that answer) */
type HookActions = {
  before_tool_call: { action: "block"; reason: string } | { action: "confirm"; message: string }
    | { action: "modify"; input: unknown } // tools.intercept
  after_tool_call: { action: "replace"; output: string } // tools.intercept (tools.transform_output)
  before_message: { action: "inject"; content: string } // privacy.llm_content
  on_message_complete: // privacy.llm_content (session.lifecycle)
    { action: "context_phase"; phase: string }
  on_compaction: never // privacy.llm_content
  on_session_start: { action: "inject"; content: string } // session.lifecycle
  on_session_end: never // session.lifecycle
};
type HookKind = keyof HookActions;
type HookResult<K extends HookKind = HookKind> = { action: "continue" } | HookActions[K];
/** The params of hook.handle (runtime 0.11.1), trusted once `kind` is a string; unused: null. */
type HookEvent = {
  kind: HookKind; tool_name: string | null; tool_runtime_name: string | null;
  tool_input: unknown; tool_output: string | null; // the output in after_tool_call only
  message: string | null; session_id: string | null; transcript: unknown[] | null; data: unknown;
};
const isObject = (value: unknown): value is Record<string, unknown> =>
  typeof value === "object" && value !== null && !Array.isArray(value);
const members = (value: unknown): Record<string, unknown> => (isObject(value) ? value : {});
const isHookEvent = (value: unknown): value is HookEvent => typeof members(value).kind === "string";

// ---- Framing ------------------------------------------------------------------------------------
/** Cuts a stream of bytes, however chunked, into the bodies of its frames. Throws when a header is
 * broken or the input ends inside a frame: where the next one starts is then anybody's guess. */
async function* readFrames(input: AsyncIterable<Buffer>): AsyncGenerator<Buffer> {
  let line = "", headerBytes = 0, announced: number | undefined; // what the header says so far
  let length: number | undefined, body: Buffer | undefined, bodyBytes = 0; // after the header
  for await (let chunk of input) {
    while (chunk.length > 0 || length === 0) {
      if (length === undefined) {
        const end = chunk.indexOf("\n") + 1 || chunk.length;
        line += chunk.toString("latin1", 0, end);
        chunk = chunk.subarray(end);
        if (headerBytes + line.length > MAX_HEADER_BYTES) throw new Error("header over 8 KiB");
        if (!line.endsWith("\n")) break;
        const isBlank = line === "\n" || line === "\r\n"; // the header's end, or a stray one
        if (!isBlank) announced = contentLength(line, announced);
        else if (headerBytes === 0 || announced !== undefined) length = announced;
        else throw new Error("header without a Content-Length");
        [line, headerBytes] = ["", isBlank ? 0 : headerBytes + line.length];
        continue;
      }
      const part = chunk.subarray(0, length - bodyBytes);
      chunk = chunk.subarray(part.length);
      if (part.length < length) body ??= Buffer.allocUnsafe(length); // else nothing is copied
      body?.set(part, bodyBytes);
      bodyBytes += part.length;
      if (bodyBytes < length) break;
      yield body ?? part;
      [length, announced, body, bodyBytes] = [undefined, undefined, undefined, 0];
    }
  }
  if (length || headerBytes > 0 || line.trim()) throw new Error("input ended inside a frame");
}

/** Takes a header's line and the length known so far, in bytes; gives the new one, or throws. */
function contentLength(line: string, known: number | undefined): number | undefined {
  const match = /^content-length[ \t]*:(?:[ \t]*([0-9]+)[ \t]*\r?\n)?/i.exec(line);
  if (!match) return known;
  const length = Number(match[1]); // NaN if the value is anything but digits
  if (known !== undefined && known !== length) throw new Error("two Content-Lengths");
  if (length <= MAX_REQUEST_BYTES) return length;
  throw new Error(`no Content-Length of up to 64 MiB: ${show(line.trim())}`);
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

/** Writes a frame. Waits for a slow reader, throws when there is none. */
async function send(text: string): Promise<void> {
  if (process.stdout.writableCorked === 0) { // one write a turn: it costs more than a reply
    process.stdout.cork();
    process.nextTick(() => process.stdout.uncork());
  }
  if (!process.stdout.write(text)) await once(process.stdout, "drain");
}

// ---- The tool: to add one, add an entry ---------------------------------------------------------
/** `call` gets the input as the model wrote it, gives what the model sees, and has 120 seconds. */
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

// ---- The guard's rule: to cut it out, see step 3 of the README ----------------------------------
// Takes shell text; gives what a recursive rm in it would remove that is no literal path strictly
// below /tmp. It runs nothing, takes linear time and throws on what is nested too deep to read.
const MAX_DEPTH = 8; // of $( $( … ) ) and of bash -c "eval '…'"
// What may stand before a command: grammar words, and launchers. To add a launcher, add its name,
// and to TAKES_NEXT its options that take the next word.
const PREFIXES = new Set(`if then elif else while until do ! { coproc function sudo doas env nohup
  timeout nice ionice time stdbuf setsid exec command builtin busybox watch xargs`.split(/\s+/));
const TAKES_NEXT = /^(?:function|coproc|-\w*[CDIRadfghopsu]|--(?:user|group|chdir|unset|signal))$/;
const READS_TEXT = new Set("sh bash dash ksh zsh su eval trap parallel".split(" "));
const BRINGS_OPERANDS = new Set("xargs parallel -exec -execdir -ok -okdir".split(" "));
// A quoted character moves to U+E000 + its code, where ";" ends no command and "$" is literal.
const move = (by: number) => (c: string) => String.fromCharCode(c.charCodeAt(0) + by);
const hide = (text: string) => text.replace(/[\0-,:-@[-^`{-\x7f]/g, move(0xe000));
const HIDDEN = /[\ue000-\ue07f]/g;
const reveal = (text: string) => text.replace(HIDDEN, move(-0xe000)).replace(/\0/g, "");
// BARE reads a token outside double quotes (group 1: a gap between words), QUOTED one inside.
const BARE = new RegExp([
  /([ \t]+|\$IFS\b|\$\{IFS\}|(?<![^ \t\n;&|(]|\\[^])#[^\n]*)|\\[^]|'[^']*'|\$'(?:[^\\']|\\[^])*'/,
  /""|\$\{[^{}'"`$()\\]*\}|`(?:[^\\`]|\\[^])*`|\$"|[$<>]\(|[^ \t\n'"`\\$;&|()<>*?[{~]+|[^]/,
].map(({ source }) => source).join("|"), "y");
const QUOTED = /\\[\\$`"\n]|`(?:[^\\`]|\\[^])*`|\$\(|[^"\\$`*?[{~]+|[^]/y;
const DYNAMIC = /[$*?[{~]/; // stands for something that is not in the text
const REDIRECTION = /<<<|(?:(?<![^ \n;&|])(?:\d+|\{\w+\}))?(?:&>+|[<>]+[&|-]?) *[^ \n;&|<>]*/g;
const ESCAPES = new Map([["\\n", "\n"], ["\\r", "\n"], ["\\t", "\t"], ["\\\\", "\\"]]);
const COMMAND_END = /[\n;&|]| (?:\ue03b|[{\ue07b][}\ue07d] \+)(?= |$)/; // find: \; and {} +
/** Undoes quoting; gives the script and those in $( ), the texts in ` `, whether it is `unsure`. */
function unquote(input: string, depth: number) {
  const text = input.replace(HIDDEN, "\uf000"); // such a character was not hidden here
  const scripts: string[] = [], nested: string[] = [], outer: [string, boolean][] = [];
  let script = "", quoted = false, unsure = false, at = 0;
  for (let token = "", gap: string | undefined; at < text.length; at += token.length) {
    if (depth + outer.length > MAX_DEPTH) throw new Error("the command is nested too deep to read");
    const lexer = quoted ? QUOTED : BARE;
    lexer.lastIndex = at;
    [token = "", gap] = lexer.exec(text) ?? [];
    if (gap) script += " ";
    else if (token === "$(" || (!quoted && /^[<>]?\($/.test(token))) {
      outer.push([script + (token === "(" ? "\n" : "$(…)"), quoted]);
      [script, quoted] = [token === "(" && text[at - 1] === "=" ? ": " : "", false]; // a=(data)
    } else if (token === ")" && !quoted) {
      unsure ||= outer.length > 0 && /(?:^|[\n;&| ])case /.test(script); // "a)" ends no $( )
      scripts.push(script);
      [script, quoted] = outer.pop() ?? ["", false];
    } else if (token === '"' || token === '$"') quoted = !quoted;
    else if (/^`[^]/.test(token)) {
      nested.push(token.slice(1, -1).replace(quoted ? /\\([\\$`"])/g : /\\([\\$`])/g, "$1"));
      script += "$(…)";
    } else if (token === "`" || (token === "'" && !quoted)) break; // left open
    else if (token === "\\\n") continue;
    else if (token.startsWith("\\")) script += hide(token.slice(1) || token);
    else if (quoted) script += DYNAMIC.test(token) ? token : hide(token);
    else if (/^['"]/.test(token)) script += hide(token.slice(1, -1)) || "\ue000"; // "" is a word
    else script += /^\$['{]/.test(token) ? "$" + hide(token) : token;
  }
  scripts.push(script, ...outer.map(([script]) => script));
  unsure ||= scripts.some((script) => /(?<!<)<<(?!<| *\d)/.test(script)); // a here-document
  unsure ||= /\)#|\\(?:\\[ \t]|\n)#|\$\{[^{}\n]*(?:'"| #)/.test(text); // # and ' in odd places
  return { scripts, nested, unsure: unsure || at < text.length || quoted || outer.length > 0 };
}

/** The blind reading: quotes and backslashes mean nothing, a separator or line starts a command. */
function blindly(text: string): string {
  // What shell_send types: the runtime decodes these escapes and drops ESC and bytes over 127.
  const keys = text.replace(/\\(?:x([0-9a-fA-F]{1,2})|[nrtabe0\\])/g, (escape, hex) => {
    const code = parseInt(hex, 16);
    return ESCAPES.get(escape) ?? (code < 128 && code !== 27 ? String.fromCharCode(code) : "");
  }).replace(/[\x01-\x08\x0b-\x1f()]|(?:[ \t]-\w*c|\btrap)[ \t]/g, "\n"); // sh -c, trap
  return keys.replace(/\\\n|["'\\]/g, "").replace(/#/g, "\\#").replace(/`/g, "$$\n");
}

/** Gives the offending operands in a text. `elsewhere`: more operands come, as from xargs. */
function findRemovals(text: string, blind = false, elsewhere = false, depth = 0): string[] {
  if (!/rm|[\0"'\\$`(]/.test(text)) return []; // nothing in it can become rm
  const { scripts, nested, unsure } = unquote(blind ? blindly(text) : text, depth);
  const commands = scripts.flatMap((script) => script.replace(REDIRECTION, " ")
    .replace(/ -(?:exec|ok)(?:dir)? /g, "\n$&").split(COMMAND_END));
  return [
    ...commands.flatMap((command) => judge(command.match(/[^ ]+/g) ?? [], elsewhere, depth)),
    ...nested.flatMap((inner) => findRemovals(inner, false, elsewhere, depth + 1)),
    ...(unsure && !blind ? findRemovals(text, true, elsewhere, depth) : []),
  ];
}

/** Takes the words of one command; gives the offending operands. */
function judge(words: string[], elsewhere: boolean, depth: number): string[] {
  for (const [i, word] of words.entries()) {
    const text = reveal(word), name = text.slice(text.lastIndexOf("/") + 1);
    elsewhere ||= BRINGS_OPERANDS.has(name);
    const read = (from: number, glue: string) =>
      findRemovals(words.slice(from).map(reveal).join(glue), false, elsewhere, depth + 1);
    if (name === "rm") return judgeRm(words.slice(i + 1), elsewhere);
    if (READS_TEXT.has(name)) return read(i + 1, /^(eval|parallel)$/.test(name) ? " " : "\n");
    if (TAKES_NEXT.test(words[i - 1] ?? "") || /^$|^[-+$]|^\.?\d|^inf|=/.test(text)) continue;
    if (i > 0 && /[ \t\n]/.test(text)) return read(i, " "); // watch 'rm -r x'
    if (!PREFIXES.has(name)) break;
  }
  return [];
}

/** Takes the words behind rm; gives the offending operands. */
function judgeRm(words: string[], elsewhere: boolean): string[] {
  const texts = words.map(reveal), end = texts.includes("--") ? texts.indexOf("--") : texts.length;
  if (!texts.slice(0, end).some((text) => /^-(?:[^-]*[rR]|-r)/.test(text))) return [];
  const operands = words.filter((_, i) => i > end || !/^-./.test(texts[i] ?? ""));
  if (elsewhere || operands.length === 0) return ["(operands that are not in the text)"];
  return operands.filter((word) => DYNAMIC.test(word) || !isBelowTmp(reveal(word))).map(reveal);
}

/** Linux takes no path of 4,096 bytes or more, and posix.normalize can take quadratic time. */
const isBelowTmp = (path: string) => path.length < 4096 && /^\/tmp\/./.test(posix.normalize(path));

// ---- The hooks: to add one, add its handler, and subscribe to it in plugin.json -----------------
/** The tools that take shell text, and its field; shell_start splits it at white space itself. */
const fields = new Map([["bash", "command"], ["shell_start", "command"], ["shell_send", "input"]]);
function beforeToolCall({ tool_name, tool_input }: HookEvent): HookResult<"before_tool_call"> {
  const field = fields.get(tool_name ?? "");
  const text = (field && members(tool_input)[field]) ?? "";
  if (typeof text !== "string") throw new Error(`the command is ${show(text)}, not a string`);
  let [removal] = findRemovals(text);
  if (tool_name !== "bash") removal ??= findRemovals(text, true)[0];
  if (tool_name === "shell_start") removal ??= judge(text.split(/[\s\x85]+/), false, 0)[0];
  if (removal === undefined) return { action: "continue" };
  return { action: "block", reason: `rm -r of ${show(removal)}, which is no literal path below ` +
    "/tmp. Name each path literally below /tmp, or ask the user to run it." };
}

/** A handler has 5 seconds (runtime). If it throws, a tool call is blocked, all else goes on. */
type Handler<K extends HookKind> = (event: HookEvent) => HookResult<K> | Promise<HookResult<K>>;
const goOn: Handler<HookKind> = () => ({ action: "continue" });
const handlers: { [K in HookKind]?: Handler<K> } = { before_tool_call: beforeToolCall };

// ---- Dispatch -----------------------------------------------------------------------------------
const hooks = new Map(Object.entries(handlers)); // a Map, since every object has a "constructor"
const capabilities = { tools, hooks: [...hooks.keys()].map((name) => ({ name })) };
const utf8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }); // a BOM is an error
let isShutDown = false;

/** Takes a method and its params; gives the result. Throws what a tool or a hook throws. */
async function handle(method: string, params: unknown): Promise<unknown> {
  switch (method) {
    case "initialize": // JSON.stringify leaves out each tool's `call`
      return { name: NAME, version: VERSION, protocol_version: 1, capabilities };
    case "tool.call": return callTool(members(params));
    case "hook.handle": return callHook(params, (event) => (hooks.get(event.kind) ?? goOn)(event));
    case "shutdown": isShutDown = true; break;
    default: log(`unknown method ${show(method)}`); // the guide: {}, no MethodNotFound
  }
  return {};
}

async function callTool({ name, input }: Record<string, unknown>): Promise<unknown> {
  const tool = tools.find((tool) => tool.name === name);
  if (!tool) throw new InvalidInput(`name is ${show(name)}, which is no tool of ${NAME}`);
  if (!isObject(input ?? {})) throw new InvalidInput(`input is ${show(input)}, not an object`);
  const text = await tool.call(members(input));
  return { content: text, output: text }; // the runtime reads content, the guide output
}

/** Runs a handler on the runtime's request or the guide's; gives its result in the same words. */
async function callHook(params: unknown, handler: Handler<HookKind>): Promise<unknown> {
  const { hook, context } = members(params), { tool, input, ...own } = members(context);
  const event: unknown = isHookEvent(params) ? params : {
    tool_runtime_name: null, tool_output: null, message: null, session_id: null, transcript: null,
    data: null, ...own, kind: hook,
    tool_name: own.tool_name ?? tool ?? "bash", tool_input: own.tool_input ?? input,
  };
  if (!isHookEvent(event)) return {};
  const result = await handler(event);
  return result.action === "continue" && event !== params ? {} : result;
}

/** Takes a request; gives the frame of its reply. */
async function reply(id: Id, method: string, params: unknown): Promise<string> {
  try {
    return frame({ id, result: await handle(method, params) });
  } catch (error) {
    const message = messageOf(error), invalid = error instanceof InvalidInput;
    if (method === "tool.call" && invalid) return failure(id, InvalidParams, message);
    log(`${method} failed: ${message}`);
    if (method !== "hook.handle") return failure(id, InternalError, message);
    const safe: Handler<HookKind> = (event) => // an error would let the call run (runtime)
      event.kind === "before_tool_call" ? { action: "block", reason: message } : goOn(event);
    return frame({ id, result: await callHook(params, safe) });
  }
}

/** Takes the body of a frame; gives the frame to answer with, or "" where no answer is due. */
async function answer(body: Buffer): Promise<string> {
  let message: Record<string, unknown>;
  try {
    message = members(JSON.parse(utf8.decode(body)));
  } catch (error) {
    return failure(null, ParseError, messageOf(error));
  }
  const { id = null, method, params } = message;
  if (method === undefined && ("result" in message || "error" in message)) return ""; // a response
  const isShort = typeof id === "string" && id.length <= 1024; // so that it fits into a reply
  const isId = isShort || (typeof id === "number" && Math.abs(id) < 2 ** 53) || id === null;
  if (!isId) return failure(null, InvalidRequest, "the id is no number, null or short string");
  if (typeof method !== "string") return failure(id, InvalidRequest, "not an object with a method");
  const response = await reply(id, method, params);
  return "id" in message ? response : ""; // JSON-RPC: never a notification
}

// ---- Main ---------------------------------------------------------------------------------------
async function main(): Promise<void> {
  process.stdout.on("error", (error) => process.stdin.destroy(error)); // nobody reads: end the loop
  process.stderr.on("error", () => {}); // nobody reads: go on
  process.exitCode = 1; // until everything asked is answered
  try {
    if (process.stdin.isTTY) throw new Error("is started by SynapsCLI; to see it work: npm test");
    for await (const body of readFrames(process.stdin)) {
      await send(await answer(body));
      if (isShutDown) break;
    }
    process.exitCode = 0;
  } catch (error) {
    log(messageOf(error));
  }
}
void main();
