package main

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/milkweedfs/milkweed/cmd/internal/config"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
)

// Messages go to the log file, and to stderr until detach.
func TestLog(t *testing.T) {
	for _, c := range []struct {
		name               string
		file, foreground   bool
		wantErr, wantInLog string
	}{
		{"foreground", false, true, "info warn later", ""},
		{"foreground with file", true, true, "warn later", "info warn later"},
		{"background", false, false, "warn", ""},
		{"background with file", true, false, "warn", "info warn later"},
	} {
		t.Run(c.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "log")
			cfg := config.Log{Level: slog.LevelInfo, Format: "json"}
			if c.file {
				cfg.File = file
			}
			var stderr bytes.Buffer
			l, err := openLog(cfg, c.foreground, &stderr)
			if err != nil {
				t.Fatal(err)
			}
			l.Debug("debug")
			l.Info("info")
			l.Warn("warn")
			if !c.foreground {
				l.detach()
			}
			l.Error("later")
			l.close()
			inLog, _ := os.ReadFile(file)
			if got := messages(stderr.String()); got != c.wantErr {
				t.Errorf("stderr has %q, want %q", got, c.wantErr)
			}
			if got := messages(string(inLog)); got != c.wantInLog {
				t.Errorf("the file has %q, want %q", got, c.wantInLog)
			}
		})
	}
	_, err := openLog(config.Log{File: filepath.Join(t.TempDir(), "none", "log")}, true, os.Stderr)
	wantCode(t, err, exit.Usage)
}

// messages returns the messages of a log in JSON.
func messages(log string) string {
	var all []string
	for line := range strings.Lines(log) {
		_, after, _ := strings.Cut(line, `"msg":"`)
		message, _, _ := strings.Cut(after, `"`)
		all = append(all, message)
	}
	return strings.Join(all, " ")
}
