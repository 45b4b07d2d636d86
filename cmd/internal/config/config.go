// Package config is what the user has decided: tiering.toml and the flags that
// override it, with a default for everything else, and where each value came
// from.
//
// A command calls Find and Load, or takes Default; overrides single values with
// Set; and calls Validate once, when nothing will change any more. Load and Set
// refuse a value that is wrong by itself; Validate refuses values that do not
// go together. Every error is an *exit.Error with code exit.Usage, one line
// that names the key and where it was set, and a remedy.
package config

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/BurntSushi/toml"

	"github.com/milkweedfs/milkweed/cmd/internal/exit"
)

// Config is one mount: what tiering.toml can say. The paths in it are absolute
// and clean, and no secret is in its URL.
type Config struct {
	Source    Source
	Tiers     []Tier // fastest first
	Mount     Mount
	Placement Placement
	Metrics   Metrics
	Log       Log

	origins map[string]string // where a value came from, by full key; see Origin
}

// Source is where the whole dataset lives: a directory or a bucket.
type Source struct {
	Path       string // a directory; "" where there is a URL, and until it is set
	URL        string // of a bucket, such as "s3://bucket/prefix?region=eu-west-1"; "" where there is a path
	Bandwidth  int64  // bytes that all reads together get in a second; 0 for no cap
	Operations int64  // operations of all kinds that begin in a second; 0 for no cap
}

// A Tier is a place that holds copies.
type Tier struct {
	Name  string // of lower-case letters, digits, "_" and "-"; no two are the same
	Path  string // a directory, made when it is missing
	Quota Quota  // how much of it Milkweed may use
}

// Mount is how the job sees the dataset.
type Mount struct {
	Point       string        // an empty directory; "" until it is set
	Mode        Mode          // how reads reach the kernel
	AllowOther  bool          // whether other users may read the mount
	AttrTimeout time.Duration // how long names and attributes are believed before the source is asked again
	Names       string        // the file that keeps the name space from one mount to the next; "" for none
}

// A Mode is a way to serve reads to the kernel.
type Mode string

// The modes.
const (
	Auto        Mode = "auto"        // the one that suits the dataset and works here
	Passthrough Mode = "passthrough" // the kernel reads files on tiers by itself, where it can
	Stateless   Mode = "stateless"   // the kernel opens files without asking, and keeps pages across opens
	Cached      Mode = "cached"      // through the daemon and the page cache
)

// Placement is how copies are made.
type Placement struct {
	Workers int // files copied at the same time, 1 to 256
}

// Metrics is where Prometheus finds the numbers.
type Metrics struct {
	Listen string // host:port, "" for nowhere
}

// Log is what the daemon says of itself, and where.
type Log struct {
	Level  slog.Level // the least severe messages that are written
	Format string     // "text" or "json"
	File   string     // "" leaves it to the command
}

// Default returns the configuration of an empty tiering.toml. It is not valid
// yet: it has no source, no mount point and no tier.
func Default() Config {
	return Config{
		Mount:     Mount{Mode: Auto, AttrTimeout: time.Hour},
		Placement: Placement{Workers: workersOfFolder},
		Log:       Log{Level: slog.LevelInfo, Format: "text"},
	}
}

// Environment names the variable that holds the path of the configuration for
// a command that is given none.
const Environment = "MILKWEED_CONFIG"

// Find returns the path of the configuration file: the explicit one; else the
// one that $MILKWEED_CONFIG names; else the first that exists of
// ./tiering.toml, milkweed/tiering.toml in $XDG_CONFIG_HOME (~/.config), and
// /etc/milkweed/tiering.toml.
//
// A command that is given SOURCE and no file does not look for one: it starts
// from Default, so that a file that happens to lie in the current directory
// does not change what a complete command line means.
func Find(explicit string) (string, error) {
	if explicit != "" {
		return explicit, nil
	}
	if env := os.Getenv(Environment); env != "" {
		return env, nil
	}
	places := []string{"tiering.toml"}
	if dir, err := os.UserConfigDir(); err == nil {
		places = append(places, filepath.Join(dir, "milkweed", "tiering.toml"))
	}
	places = append(places, filepath.Join(system, "milkweed", "tiering.toml"))
	for _, p := range places {
		// A file that is there and cannot be read is found: Load says why.
		if _, err := os.Lstat(p); !errors.Is(err, os.ErrNotExist) {
			return p, nil
		}
	}
	return "", &exit.Error{
		Code:   exit.Usage,
		Err:    fmt.Errorf("no configuration: looked for %s", strings.Join(places, ", ")),
		Remedy: "Give SOURCE and MOUNTPOINT on the command line, or name a file with -c.",
	}
}

var system = "/etc" // a variable for the test

// Load reads a configuration file over the defaults, strictly.
func Load(path string) (*Config, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, &exit.Error{
			Code:   exit.Usage,
			Err:    fmt.Errorf("configuration: %w", err),
			Remedy: "Name a file that can be read with -c, or give SOURCE and MOUNTPOINT on the command line.",
		}
	}
	return Parse(path, data)
}

// Parse is Load for a file that was read already; its errors and origins call
// the file name.
func Parse(name string, data []byte) (*Config, error) {
	tree := make(map[string]any)
	if _, err := toml.NewDecoder(bytes.NewReader(data)).Decode(&tree); err != nil {
		return nil, syntaxError(name, err)
	}
	c := Default()
	if err := c.decode(name, tree, scanLines(string(data))); err != nil {
		return nil, err
	}
	return &c, nil
}

func syntaxError(name string, err error) error {
	message := err.Error()
	if e, ok := errors.AsType[toml.ParseError](err); ok {
		name = fmt.Sprintf("%s:%d", name, e.Position.Line)
		message = e.Message
	}
	message = strings.Join(strings.Fields(message), " ") // on one line
	return &exit.Error{
		Code:   exit.Usage,
		Err:    fmt.Errorf("%s: not TOML: %s", name, message),
		Remedy: `A line is key = value, and text stands in double quotes, such as path = "/data".`,
	}
}
