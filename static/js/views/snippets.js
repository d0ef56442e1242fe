/** A request in the words of other programs. None of them has a key: it stands in the environment. */

/** What is sent, and where to. */
export function requestOf(task, origin) {
  const path = "messages" in task ? "/v1/chat/completions" : "/v1/completions";
  return { url: origin + path, body: { ...task, stream: true } };
}

export const LANGUAGES = { curl, Python: python, JavaScript: javascript, JSONL: jsonl };

function curl({ url, body }) {
  const text = JSON.stringify(body).replaceAll("'", "'\\''");
  return `curl -N ${url} \\\n  -H "Authorization: Bearer $EAGRE_API_KEY" \\\n  -H 'Content-Type: application/json' \\\n  -d '${text}'`;
}

function python({ url, body }) {
  return [
    "import json, os, urllib.request", "",
    `body = json.loads(${JSON.stringify(JSON.stringify(body))})`,
    "headers = {", '    "Authorization": "Bearer " + os.environ.get("EAGRE_API_KEY", ""),',
    '    "Content-Type": "application/json",', "}",
    `request = urllib.request.Request(${JSON.stringify(url)}, json.dumps(body).encode(), headers)`,
    "with urllib.request.urlopen(request) as answer:",
    "    for line in answer:",
    '        if line.startswith(b"data: {"):',
    "            print(json.loads(line[6:]))",
  ].join("\n");
}

function javascript({ url, body }) {
  return [
    `const answer = await fetch(${JSON.stringify(url)}, {`, '  method: "POST",',
    '  headers: { Authorization: `Bearer ${process.env.EAGRE_API_KEY}`, "Content-Type": "application/json" },',
    `  body: JSON.stringify(${JSON.stringify(body, null, 2).replaceAll("\n", "\n  ")}),`, "});",
    "for await (const text of answer.body.pipeThrough(new TextDecoderStream())) console.log(text);",
  ].join("\n");
}

function jsonl({ url, body }) {
  const { stream: _, ...rest } = body;
  return JSON.stringify({ custom_id: "request-1", method: "POST", url: new URL(url).pathname, body: rest });
}
