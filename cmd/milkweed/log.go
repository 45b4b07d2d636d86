package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/config"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
)

// A daemonLog is the log of a daemon.
type daemonLog struct {
	*slog.Logger
	File *os.File // the log file; nil if there is none

	console slog.LevelVar // the minimum level for the standard error
	recent  recentWarnings
	level   slog.LevelVar // that for the log file
}

// silent is a level above all others.
const silent = slog.Level(math.MaxInt)

// openLog opens the log. All messages go to the log file. In the foreground without a log file,
// they go to stderr. Warnings and errors also go to stderr in all cases, until detach.
func openLog(c config.Log, foreground bool, stderr io.Writer) (*daemonLog, error) {
	l := &daemonLog{}
	l.level.Set(c.Level)
	l.console.Set(max(c.Level, slog.LevelWarn))
	if foreground && c.File == "" {
		l.console.Set(c.Level)
	}
	handlers := []slog.Handler{logHandler(stderr, c.Format, &l.console), l.recent.handler()}
	if c.File != "" {
		f, err := os.OpenFile(c.File, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o640)
		if err != nil {
			return nil, &exit.Error{
				Code:   exit.Usage,
				Err:    fmt.Errorf("log.file: %w", err),
				Remedy: "Set it to a file that this user may write, or remove it.",
			}
		}
		l.File = f
		handlers = append(handlers, logHandler(f, c.Format, &l.level))
	}
	l.Logger = slog.New(slog.NewMultiHandler(handlers...))
	return l, nil
}

// defaultLog returns the path of the log of a daemon in the background whose configuration has
// no log.file. Each dataset has its own file, in a directory that defaultLog makes.
func defaultLog(source string) (string, error) {
	dir := config.StateFolder()
	if dir == "" {
		return "", errors.New("there is neither $XDG_STATE_HOME nor a home directory")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	if err := unix.Access(dir, unix.W_OK); err != nil {
		return "", &fs.PathError{Op: "write to", Path: dir, Err: err}
	}
	return filepath.Join(dir, config.DatasetID(source)+".log"), nil
}

// detach stops writing to stderr, because the command that started the daemon has returned.
func (l *daemonLog) detach() { l.console.Set(silent) }

// setLevel changes the minimum level of the log. Without a file, that is the standard error.
func (l *daemonLog) setLevel(level slog.Level) {
	l.level.Set(level)
	if l.File == nil && l.console.Level() != silent {
		l.console.Set(level)
	}
}

func (l *daemonLog) close() {
	if l.File != nil {
		l.File.Close()
	}
}

func logHandler(w io.Writer, format string, level slog.Leveler) slog.Handler {
	options := &slog.HandlerOptions{Level: level}
	if format == "json" {
		return slog.NewJSONHandler(w, options)
	}
	return slog.NewTextHandler(w, options)
}
