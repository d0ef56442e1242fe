#!/bin/sh
# A whole answer, a stream, and the tokens of a text, with curl.
set -eu
url=${EAGRE_URL:-http://127.0.0.1:8000}

ask() { # path, body
  curl --fail-with-body --silent --show-error --no-buffer "$url$1" -H 'Content-Type: application/json' -d "$2"
  echo
}

ask /v1/chat/completions '{
  "messages": [{"role": "user", "content": "Name the capital of France in one sentence."}], "max_tokens": 40, "temperature": 0}'
ask /v1/completions '{"prompt": "Once upon a time", "max_tokens": 10, "stream": true}'
ask /tokenize '{"prompt": "Once upon a time", "return_token_strs": true}'
