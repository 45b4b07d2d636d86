package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/milkweedfs/milkweed/cmd/internal/exit"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the program at once
	err := run(ctx, os.Args, os.Stdout, os.Stderr)
	if err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintf(os.Stderr, "milkweed-k8s: %v\n", err)
	}
	os.Exit(int(exit.Of(err)))
}

// run runs the command line args. args[0] is the name by which the program was called.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	root := newRoot(stdout, stderr)
	root.SetArgs(args[1:])
	return root.ExecuteContext(ctx)
}

const rootLong = `Milkweed-k8s is the part of Milkweed for Kubernetes. Each command is the main
process of a container, and runs the program milkweed.

Exit codes:
  0  done, or ended by SIGTERM
  1  something unexpected
  2  wrong flag or argument
  3 to 9  those of milkweed; see milkweed --help`

func newRoot(stdout, stderr io.Writer) *cobra.Command {
	root := &cobra.Command{
		Use:     "milkweed-k8s",
		Version: version(),
		Short:   "Serve Milkweed mounts in Kubernetes",
		Long:    rootLong,
		Example: `  milkweed-k8s csi --node-name "$NODE_NAME"
  milkweed-k8s mounter`,
		Args:              usage(cobra.NoArgs),
		RunE:              func(c *cobra.Command, _ []string) error { return c.Help() },
		SilenceErrors:     true, // main reports them
		SilenceUsage:      true,
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
	}
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.SetFlagErrorFunc(usageError)
	root.AddCommand(commands()...)
	return root
}

// commands returns the commands of the program.
func commands() []*cobra.Command {
	return []*cobra.Command{newCSI(), newMounter(), newFluid()}
}

// usage wraps check, so that its errors have the exit code and the remedy of a usage error.
func usage(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if err := check(c, args); err != nil {
			return usageError(c, err)
		}
		return nil
	}
}

func usageError(c *cobra.Command, err error) error {
	return &exit.Error{
		Code:   exit.Usage,
		Err:    err,
		Remedy: fmt.Sprintf("`%s --help` explains the command.", c.CommandPath()),
	}
}
