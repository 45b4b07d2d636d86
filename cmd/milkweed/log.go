package main

import (
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/config"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
)

// A daemonLog is where a daemon writes what happens to it.
type daemonLog struct {
	*slog.Logger
	File *os.File // the log file; nil for none

	console slog.LevelVar // the least severe message that the terminal shows
}

// silent is above every level.
const silent = slog.Level(math.MaxInt)

// openLog opens the log. A daemon in the foreground logs to stderr, unless it
// has a log file. Warnings come to stderr in any case, for as long as somebody
// may be looking: until detach.
func openLog(c config.Log, foreground bool, stderr io.Writer) (*daemonLog, error) {
	l := &daemonLog{}
	l.console.Set(max(c.Level, slog.LevelWarn))
	if foreground && c.File == "" {
		l.console.Set(c.Level)
	}
	handler := logHandler(stderr, c.Format, &l.console)
	if c.File != "" {
		f, err := os.OpenFile(c.File, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o640)
		if err != nil {
			return nil, &exit.Error{
				Code:   exit.Usage,
				Err:    fmt.Errorf("log.file: %w", err),
				Remedy: "Name a file that can be written, or none.",
			}
		}
		l.File = f
		handler = slog.NewMultiHandler(logHandler(f, c.Format, c.Level), handler)
	}
	l.Logger = slog.New(handler)
	return l, nil
}

// defaultLog returns where a daemon in the background logs when nobody has said:
// a file for each dataset, in a folder that it makes; "" if it cannot.
func defaultLog(source string) string {
	state := os.Getenv("XDG_STATE_HOME")
	if state == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return ""
		}
		state = filepath.Join(home, ".local", "state")
	}
	dir := filepath.Join(state, "milkweed")
	if os.MkdirAll(dir, 0o700) != nil || unix.Access(dir, unix.W_OK) != nil {
		return ""
	}
	return filepath.Join(dir, config.DatasetID(source)+".log")
}

// detach stops writing to stderr, which leads nowhere from now on.
func (l *daemonLog) detach() { l.console.Set(silent) }

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
