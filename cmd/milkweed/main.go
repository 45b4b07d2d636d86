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
	"time"

	"github.com/spf13/cobra"

	"github.com/milkweedfs/milkweed/cmd/internal/apart"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
)

func main() {
	apart.Inside() // before any child is started
	if isCounting() {
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), shutdownSignals()...)
	isDaemon := os.Getenv(readyEnv) != ""
	context.AfterFunc(ctx, func() {
		if isDaemon {
			time.Sleep(passTime) // until then, all signals are one
		}
		stop() // a second signal ends the program at once
	})
	err := run(context.WithValue(ctx, programKey{}, true), os.Args, os.Stdout, os.Stderr)
	report(os.Stderr, err)
	apart.Exit(int(exit.Of(err)))
}

// programKey is the key of a context of main, and not of a test.
type programKey struct{}

// childLimit bounds a command that runs in a child, until it calls apart.Opened. Each of its requests has a
// time-out of a few seconds, except those that find out what a path of the configuration is.
const childLimit = 30 * time.Second

// inChild makes a command that touches file systems which may hang run in a process of its own.
func inChild(run func(*cobra.Command, []string) error) func(*cobra.Command, []string) error {
	return func(c *cobra.Command, args []string) error {
		if c.Context().Value(programKey{}) == nil || apart.Inside() {
			return run(c, args)
		}
		code, err := apart.Run(c.Context(), childLimit)
		switch {
		case errors.Is(err, apart.ErrHangs):
			return &exit.Error{
				Code: exit.Source, Err: fmt.Errorf("%s was not done within %v: %w", c.CommandPath(), childLimit, err),
				Remedy: "It is that of the source, of a tier or of another path in the configuration. Check its server.",
			}
		case err == nil && code != 0:
			return &exit.Error{Code: exit.Code(code), Err: errReported}
		}
		return err
	}
}

// shutdownSignals returns the signals after which the program shuts down. SIGHUP is one of them if
// it means that the terminal is gone. Otherwise, as in a daemon, and under nohup, it is ignored,
// except that a daemon reloads its configuration (catchHangups).
func shutdownSignals() []os.Signal {
	if apart.Inside() { // its parent passes on the other ones, which a terminal sends to both
		signal.Notify(make(chan os.Signal, 1), os.Interrupt, syscall.SIGHUP)
		return []os.Signal{syscall.SIGTERM}
	}
	signals := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if signal.Ignored(syscall.SIGHUP) {
		return signals
	}
	if os.Getenv(readyEnv) != "" || !hasTerminal() { // a daemon leaves the terminal
		signal.Ignore(syscall.SIGHUP)
		return signals
	}
	return append(signals, syscall.SIGHUP)
}

// hasTerminal reports whether this process has a controlling terminal.
func hasTerminal() bool {
	terminal, err := os.Open("/dev/tty")
	if err != nil {
		return false
	}
	terminal.Close()
	return true
}

// run runs the command line args. args[0] is the name by which the program was called.
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

// report prints the error of a command, or each of several joined errors.
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
		fmt.Fprintf(stderr, "milkweed: %s\n", strings.Map(visible, err.Error()))
	}
}

// errReported matches an error that was already printed.
var errReported = errors.New("reported")

const rootLong = `Milkweed caches a slow, shared, read-only dataset in the memory and on the disks
of a node. It is a FUSE file system: an unchanged job reads the dataset through
the mount, and Milkweed reads each byte of the source once, as long as the
tiers have room.

Names of files and generations are bytes. In JSON, a name that is not UTF-8 has
U+FFFD in place of the invalid bytes, and a second field, whose name ends in
_bytes, has all bytes in base64: path_bytes is beside path.

Exit codes:
  0  done
  1  something unexpected
  2  wrong flag, argument or configuration
  3  the source is missing or cannot be read, or too much of it is missing
  4  the mount point is missing, not empty, in use or stale
  5  a tier cannot be used
  6  FUSE is missing, or the system does not permit what was requested, or too
     little memory or too few open files
  7  no Milkweed is mounted there, or its daemon does not answer
  8  some files failed, copies were corrupt, keys were not reloaded, doctor
     found a problem, or the work was interrupted
  9  the peers cannot be used: their roster, their secret, or the address`

func newRoot(stdout, stderr io.Writer) *cobra.Command {
	var printVersion bool
	root := &cobra.Command{
		Use:   "milkweed",
		Short: "Cache a shared dataset on the local node",
		Long:  rootLong,
		Example: `  milkweed mount /lustre/imagenet /mnt/imagenet
  milkweed mount 's3://imagenet/2012?region=eu-west-1' /mnt/imagenet
  milkweed status /mnt/imagenet
  milkweed umount /mnt/imagenet`,
		Args: noSuchCommand,
		RunE: func(c *cobra.Command, _ []string) error {
			if printVersion {
				fmt.Fprintln(c.OutOrStdout(), "milkweed", thisBuild())
				return nil
			}
			return c.Help()
		},
		SilenceErrors: true, // main reports them
		SilenceUsage:  true,
	}
	// Not cobra's own flag, whose format is a template: a program with text/template calls
	// methods by their names, so the linker keeps all methods of all types.
	root.Flags().BoolVarP(&printVersion, "version", "v", false, "version for milkweed")
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return usageError(c, err)
	})
	root.AddCommand(
		newMount(),
		newUmount(),
		newStatus(),
		newTop(),
		newTrace(),
		newProfile(),
		newWhere(),
		newWarmup(),
		newRefresh(),
		newEvict(),
		newGenerations(),
		newPrepare(),
		newSwitch(),
		newManifest(),
		newPlan(),
		newExchange(),
		newScrub(),
		newPeers(),
		newCheck(),
		newDoctor(),
		newDebug(),
		newConfig(),
		newDemo(),
		newBench(),
		newVersion(),
		newMan(),
	)
	addCompletion(root) // after SetOut, because it keeps the writer
	return root
}

// noSuchCommand returns an error if the first argument of a command that has commands is not one of them.
func noSuchCommand(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	e := &exit.Error{
		Code:   exit.Usage,
		Err:    fmt.Errorf("unknown command %q", args[0]),
		Remedy: fmt.Sprintf("`%s --help` lists the commands.", c.CommandPath()),
	}
	c.SuggestionsMinimumDistance = 2
	if near := c.SuggestionsFor(args[0]); len(near) > 0 {
		e.Remedy = fmt.Sprintf("Did you mean `%s %s`?", c.CommandPath(), strings.Join(near, "` or `"+c.CommandPath()+" "))
	}
	return e
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
