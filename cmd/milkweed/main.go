package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/milkweedfs/milkweed/cmd/internal/exit"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), endings()...)
	context.AfterFunc(ctx, stop) // a second signal ends the program where it stands
	err := run(ctx, os.Args, os.Stdout, os.Stderr)
	report(os.Stderr, err)
	os.Exit(int(exit.Of(err)))
}

// endings are the signals that end the program in an orderly way. A hang-up is
// one, unless the program runs under nohup.
func endings() []os.Signal {
	signals := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) {
		signals = append(signals, syscall.SIGHUP)
	}
	return signals
}

// run does what the command line says. Its first word is the name that the
// program was called by.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	words := args[1:]
	if filepath.Base(args[0]) == helperName {
		var err error
		if words, err = fromHelper(words); err != nil {
			return err
		}
	}
	root := newRoot(stdout, stderr)
	root.SetArgs(words)
	return root.ExecuteContext(ctx)
}

// report prints the error that a command ended with, or the errors.
func report(stderr io.Writer, err error) {
	joined, several := err.(interface{ Unwrap() []error })
	switch {
	case several:
		for _, err := range joined.Unwrap() {
			report(stderr, err)
		}
	case err == nil, errors.Is(err, errReported):
	case errors.Is(err, context.Canceled):
		fmt.Fprintln(stderr, "milkweed: interrupted")
	default:
		fmt.Fprintf(stderr, "milkweed: %v\n", err)
	}
}

// errReported matches an error that the user has seen.
var errReported = errors.New("reported")

const rootLong = `Milkweed puts a node's memory and disks in front of a slow, shared, read-only
dataset. It is a mount: an unchanged job reads the dataset below it, and each
byte of the source is read once.

Exit codes:
  0  done
  1  something unexpected
  2  wrong flag, argument or configuration
  3  the source is missing or cannot be read
  4  the mount point is missing, not empty, in use or stale
  5  a tier cannot be used
  6  FUSE is not there, or does not permit what was asked
  7  no Milkweed is mounted there, or it does not answer
  8  the work was done in part: some files failed`

func newRoot(stdout, stderr io.Writer) *cobra.Command {
	root := &cobra.Command{
		Use:   "milkweed",
		Short: "Local speed for a shared dataset",
		Long:  rootLong,
		Example: `  milkweed mount /lustre/imagenet /mnt/imagenet
  milkweed mount 's3://imagenet/2012?region=eu-west-1' /mnt/imagenet
  milkweed status /mnt/imagenet
  milkweed umount /mnt/imagenet`,
		Args:          noSuchCommand,
		RunE:          func(c *cobra.Command, _ []string) error { return c.Help() },
		SilenceErrors: true, // main reports them
		SilenceUsage:  true,
	}
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return usageError(c, err)
	})
	root.AddCommand(
		newMount(),
		newUmount(),
		newStatus(),
		newWhere(),
		newWarmup(),
		newCheck(),
		newDemo(),
		newBench(),
		newVersion(),
		newMan(),
	)
	addCompletion(root) // which keeps the writer of its time
	return root
}

// noSuchCommand is for a word after `milkweed` that is no command.
func noSuchCommand(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	e := &exit.Error{
		Code:   exit.Usage,
		Err:    fmt.Errorf("unknown command %q", args[0]),
		Remedy: "`milkweed --help` lists the commands.",
	}
	c.SuggestionsMinimumDistance = 2
	if near := c.SuggestionsFor(args[0]); len(near) > 0 {
		e.Remedy = fmt.Sprintf("Did you mean `milkweed %s`?", strings.Join(near, "` or `milkweed "))
	}
	return e
}

// usage makes the errors of a check of arguments errors for the user.
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
