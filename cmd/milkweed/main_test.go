package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/cmd/internal/lab"
	"github.com/milkweedfs/milkweed/cmd/internal/lab/enclosure"
)

func TestMain(m *testing.M) {
	if role := os.Getenv(roleEnv); role != "" {
		os.Exit(play(role))
	}
	if os.Getenv(readerEnv) != "" {
		os.Exit(serveReads())
	}
	if tree := os.Getenv(treeEnv); tree != "" {
		os.Exit(testTree(tree))
	}
	flag.Parse()
	isSet := false
	flag.Visit(func(f *flag.Flag) { isSet = isSet || f.Name == "test.parallel" })
	if !isSet {
		flag.Set("test.parallel", strconv.Itoa(sitesPerCPU*runtime.GOMAXPROCS(0)))
	}
	tests := func(string) (int, error) {
		if os.Geteuid() == 0 {
			if err := keepOrigin(); err != nil {
				return 1, err
			}
		}
		code := m.Run()
		return code, lab.RemovePrograms()
	}
	if os.Geteuid() != 0 {
		code, _ := tests("")
		os.Exit(code) // the tests that mount skip
	}
	// Tests of other packages make mount namespaces. If one had a copy of a mount of these tests, the
	// mount would be in use after it was unmounted, and its daemon would not end.
	code, err := enclosure.Run("milkweed-tests-", func(folder string) (int, error) {
		code, err := tests(folder)
		return enclosure.Verify(code), err
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}

// runMilkweed runs a command line in this process.
func runMilkweed(t *testing.T, words ...string) (stdout, stderr string, err error) {
	t.Helper()
	var out, errs bytes.Buffer
	err = run(t.Context(), append([]string{"milkweed"}, words...), &out, &errs)
	return out.String(), errs.String(), err
}

// wantCode fails the test if code is not the exit code of a command that returned err.
func wantCode(t *testing.T, err error, code exit.Code) {
	t.Helper()
	if got := exit.Of(err); got != code {
		t.Errorf("exit code %d, want %d: %v", got, code, err)
	}
}

func TestUsageErrors(t *testing.T) {
	for _, c := range []struct {
		line, says string
	}{
		{"stauts", "Did you mean `milkweed status`?"},
		{"frobnicate", "`milkweed --help` lists the commands."},
		{"status --jsno", "`milkweed status --help` explains the command."},
		{"status a b", "accepts at most 1 arg"},
		{"umount", "accepts 1 arg"},
		{"where", "requires at least 1 arg"},
		{"mount a b c", "accepts at most 2 arg"},
	} {
		_, _, err := runMilkweed(t, strings.Fields(c.line)...)
		wantCode(t, err, exit.Usage)
		if err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("milkweed %s: %v; want %q in it", c.line, err, c.says)
		}
	}
}

func TestReport(t *testing.T) {
	named := &exit.Error{Code: exit.Tier, Err: errors.New("tier ssd: gone"), Remedy: "Mount it."}
	for _, c := range []struct {
		err  error
		want string
	}{
		{nil, ""},
		{named, "milkweed: tier ssd: gone\n  Mount it.\n"},
		{errors.Join(errors.New("a"), nil, errors.New("b")), "milkweed: a\nmilkweed: b\n"},
		{&reported{named}, ""},
	} {
		var b bytes.Buffer
		report(&b, c.err)
		if got := b.String(); got != c.want {
			t.Errorf("%v: got %q, want %q", c.err, got, c.want)
		}
	}
	wantCode(t, &reported{named}, exit.Tier)
}

// The help of the program lists every exit code.
func TestExitCodesAreDocumented(t *testing.T) {
	for code := exit.OK; code <= exit.Peers; code++ {
		if !strings.Contains(rootLong, fmt.Sprintf("\n  %d  ", code)) {
			t.Errorf("%d is missing", code)
		}
	}
}

// Every command has a help text, in lines that fit a terminal, and an example.
func TestHelp(t *testing.T) {
	var each func(*cobra.Command)
	each = func(c *cobra.Command) {
		if c.Short == "" || c.Long == "" || c.Example == "" {
			t.Errorf("%s: Short, Long or Example is missing", c.CommandPath())
		}
		for line := range strings.Lines(c.Long) {
			if n := len([]rune(line)); n > 81 {
				t.Errorf("%s: a line of %d columns: %s", c.CommandPath(), n, line)
			}
		}
		for _, sub := range c.Commands() {
			if c.Name() != "completion" { // its subcommands are those of cobra
				each(sub)
			}
		}
	}
	each(newRoot(io.Discard, io.Discard))
}

func TestVersion(t *testing.T) {
	plain, _, err := runMilkweed(t, "version")
	wantCode(t, err, exit.OK)
	flag, _, err := runMilkweed(t, "--version")
	wantCode(t, err, exit.OK)
	if plain != flag || !strings.HasPrefix(plain, "milkweed ") {
		t.Errorf("version printed %q, --version %q", plain, flag)
	}
	out, _, err := runMilkweed(t, "version", "--json")
	wantCode(t, err, exit.OK)
	if !strings.Contains(out, `"version":"`) {
		t.Errorf("printed %q", out)
	}
}

func TestCompletion(t *testing.T) {
	out, _, err := runMilkweed(t, "completion", "bash")
	wantCode(t, err, exit.OK)
	if !strings.Contains(out, "milkweed") {
		t.Errorf("printed %q", out)
	}
}

func TestMan(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "man1")
	_, _, err := runMilkweed(t, "man", dir)
	wantCode(t, err, exit.OK)
	for _, page := range []string{"milkweed.1", "milkweed-mount.1", "milkweed-umount.1", "milkweed-warmup.1"} {
		if _, err := os.Stat(filepath.Join(dir, page)); err != nil {
			t.Error(err)
		}
	}
}

func TestText(t *testing.T) {
	for path, want := range map[string]string{
		"/mnt/ä b":      "/mnt/ä b",
		"/mnt/\xff":     `"/mnt/\xff"`,
		"/mnt/\x1b[31m": `"/mnt/\x1b[31m"`,
		"a\nb":          `"a\nb"`,
	} {
		if got := text(path); got != want {
			t.Errorf("%q: got %s, want %s", path, got, want)
		}
	}
}
