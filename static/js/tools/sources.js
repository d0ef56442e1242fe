/** Where tools come from; a part of the page that is loaded when a conversation has tools. */

export { BuiltinTools } from "./builtin.js";
export { McpClient } from "./mcp_client.js";
