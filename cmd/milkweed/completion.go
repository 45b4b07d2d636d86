package main

import "github.com/spf13/cobra"

// addCompletion adds cobra's command for shell completion, with a help text of ours.
func addCompletion(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	c, _, err := root.Find([]string{"completion"})
	if err != nil {
		panic(err) // InitDefaultCompletionCmd has added it
	}
	c.Short = "Print a completion script for a shell"
	c.Long = `Completion prints a script with which a shell completes the commands, flags and
mount points of Milkweed. The shells are bash, zsh, fish and powershell. The
--help of each describes where to install the script.`
	c.Example = `  source <(milkweed completion bash)
  milkweed completion zsh > "${fpath[1]}/_milkweed"`
}
