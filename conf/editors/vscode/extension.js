// Starts `rest-bridge lsp`, which does everything else.
const { window, workspace } = require("vscode");
const { LanguageClient } = require("vscode-languageclient/node");

let client;

async function activate() {
  const settings = workspace.getConfiguration("rest-bridge");
  const secrets = settings.get("secretsDir");
  const server = {
    command: settings.get("command"),
    args: ["lsp", ...(secrets ? ["--secrets-dir", secrets] : [])],
  };
  client = new LanguageClient("rest-bridge", "REST API routes", server, {
    documentSelector: [{ language: "lot" }, { pattern: "**/*.lotnb" }],
  });
  try {
    await client.start();
  } catch (error) {
    window.showErrorMessage(
      `${server.command} lsp cannot be started: ${error?.message ?? error}. ` +
        "Install it with: pip install 'amqtt-rest-bridge[lsp]', or set rest-bridge.command.",
    );
  }
}

function deactivate() {
  return client?.isRunning() ? client.stop() : undefined;
}

module.exports = { activate, deactivate };
