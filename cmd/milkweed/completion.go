package main

import "github.com/spf13/cobra"

// addCompletion makes cobra's own command visible as one of ours.
func addCompletion(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	c, _, err := root.Find([]string{"completion"})
	if err != nil {
		panic(err) // it was added in the line above
	}
	c.Short = "Write a script that completes commands in a shell"
	c.Long = `Completion writes a script to the standard output with which a shell completes
the commands, flags and mount points of Milkweed. The shells are bash, zsh, fish
and powershell; each has a --help that tells where the script belongs.`
	c.Example = `  source <(milkweed completion bash)
  milkweed completion zsh > "${fpath[1]}/_milkweed"`
}
