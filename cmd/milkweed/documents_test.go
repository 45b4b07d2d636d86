package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/milkweedfs/milkweed/cmd/internal/lab/docrun"
)

// documents returns the paths of the Markdown files that match patterns, which
// are relative to the root of the repository.
func documents(t *testing.T, patterns ...string) []string {
	t.Helper()
	var files []string
	for _, p := range patterns {
		found, err := filepath.Glob(filepath.Join("../..", p))
		if err != nil || len(found) == 0 {
			t.Fatalf("no document matches %s: %v", p, err)
		}
		files = append(files, found...)
	}
	return files
}

// allDocuments returns the paths of all documents.
func allDocuments(t *testing.T) []string {
	t.Helper()
	return documents(t, "*.md", "docs/*.md", "docs/*/*.md", "examples/*.md", "examples/*/*.md")
}

// namedTest matches the name of a test in a document, such as
// `drivers/blob.TestErrors`: a directory and a function.
var namedTest = regexp.MustCompile("`([a-z/]+)\\.((?:Test|Benchmark|Fuzz)[A-Z]\\w*)`")

// Every test that a document names exists in the directory that it names.
func TestDocumentsNameTests(t *testing.T) {
	sources := make(map[string]string) // the tests of a directory
	names := 0
	for _, file := range allDocuments(t) {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range namedTest.FindAllStringSubmatch(string(text), -1) {
			names++
			dir, name := m[1], m[2]
			if _, ok := sources[dir]; !ok {
				sources[dir] = testSources(t, dir)
			}
			if !strings.Contains(sources[dir], "\nfunc "+name+"(") {
				t.Errorf("%s names %s.%s, which does not exist", file, dir, name)
			}
		}
	}
	if names < 100 {
		t.Errorf("the documents name %d tests, want at least 100", names)
	}
}

// testSources returns the content of the test files of a directory.
func testSources(t *testing.T, dir string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("../..", dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(text)
	}
	return all.String()
}

// A line of prose has at most 100 columns. Tables and code may be wider.
func TestDocumentsFitALine(t *testing.T) {
	for _, file := range allDocuments(t) {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		code, n := false, 0
		for line := range strings.Lines(string(text)) {
			n++
			line = strings.TrimSuffix(line, "\n")
			if strings.HasPrefix(line, "```") {
				code = !code
			}
			if columns := utf8.RuneCountInString(line); columns > 100 && !code && !strings.HasPrefix(line, "|") {
				t.Errorf("%s:%d: %d columns", file, n, columns)
			}
		}
	}
}

// Each link of a document to a file, or to a heading, has a target.
func TestDocumentsLink(t *testing.T) {
	anchors := make(map[string]map[string]bool) // of a document
	links := 0
	for _, file := range allDocuments(t) {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for link, line := range docrun.Links(string(text)) {
			links++
			target, anchor := docrun.Target(file, link)
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s:%d: %s does not exist", file, line, link)
				continue
			}
			if anchor == "" {
				continue
			}
			if info, _ := os.Stat(target); info.IsDir() {
				target = filepath.Join(target, "README.md")
			}
			if anchors[target] == nil {
				text, err := os.ReadFile(target)
				if err != nil {
					t.Fatal(err)
				}
				anchors[target] = docrun.Anchors(string(text))
			}
			if !anchors[target][anchor] {
				t.Errorf("%s:%d: %s has no such heading", file, line, link)
			}
		}
	}
	if links < 100 {
		t.Errorf("the documents have %d links, want at least 100", links)
	}
}

// A command of this program in a block of a document, and in an example of --help, is valid: the
// command and its flags exist, their values have the right types, and the number of arguments is
// right. In prose, arguments and values may be missing. Package docrun also runs the tutorial and
// the how-to guides.
func TestDocumentsHaveValidCommands(t *testing.T) {
	check := func(where, line string, prose bool) (found int) {
		for _, words := range commandsIn(line) {
			if words[0] != "milkweed" {
				continue
			}
			found++
			if err := validCommand(words[1:], prose); err != nil {
				t.Errorf("%s: %s: %v", where, line, err)
			}
		}
		return found
	}
	found := 0
	for _, file := range allDocuments(t) {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if filepath.Base(file) == "CHANGELOG.md" {
			continue // it has commands of earlier releases
		}
		block, shell := false, false
		for line := range strings.Lines(strings.ReplaceAll(string(text), "\\\n", "")) {
			line = strings.TrimSpace(line)
			if strings.HasPrefix(line, "```") {
				block = !block
				shell = block && slices.Contains([]string{"```", "```sh", "```bash", "```console"}, line)
			} else if shell {
				found += check(file, strings.TrimPrefix(line, "$ "), false)
			} else if !block {
				for _, m := range regexp.MustCompile("`(milkweed [^`]*)`").FindAllStringSubmatch(line, -1) {
					found += check(file, m[1], true)
				}
			}
		}
	}
	eachCommand(newRoot(io.Discard, io.Discard), func(c *cobra.Command) {
		for line := range strings.Lines(c.Example) {
			found += check(c.CommandPath()+" --help", strings.TrimSpace(line), false)
		}
	})
	if found < 300 {
		t.Errorf("the documents have %d commands, want at least 300", found)
	}
}

// validCommand returns an error if the program would refuse the words before it acts.
func validCommand(words []string, prose bool) error {
	root := newRoot(io.Discard, io.Discard)
	c, rest, err := root.Find(words)
	if err != nil {
		return err
	}
	if c == root && len(rest) > 0 && !strings.HasPrefix(rest[0], "-") {
		return c.Args(c, rest)
	}
	if prose {
		for _, word := range rest {
			name, _, _ := strings.Cut(strings.TrimPrefix(word, "--"), "=")
			if strings.HasPrefix(word, "--") && name != "help" && c.Flag(name) == nil {
				return fmt.Errorf("there is no flag --%s", name)
			}
		}
		return nil
	}
	if err := c.ParseFlags(rest); err != nil && !errors.Is(err, pflag.ErrHelp) {
		return err
	}
	return c.ValidateArgs(c.Flags().Args())
}

// commandsIn splits a line of shell into the words of its simple commands. It knows quotes, pipes,
// lists, redirections, comments and sudo, and ignores everything else.
func commandsIn(line string) [][]string {
	var commands [][]string
	var words []string
	var word strings.Builder
	quote, inWord, redirected := rune(0), false, false
	endWord := func() {
		if inWord && !redirected {
			words = append(words, word.String())
		}
		redirected = redirected && !inWord
		word.Reset()
		inWord = false
	}
	endCommand := func() {
		endWord()
		for len(words) > 0 && slices.Contains([]string{"sudo", "!", "(", "time", "exec"}, words[0]) {
			words = words[1:]
		}
		if len(words) > 0 {
			commands = append(commands, words)
		}
		words, redirected = nil, false
	}
	for _, r := range line {
		switch {
		case r == quote:
			quote = 0
		case quote != 0:
			word.WriteRune(r)
		case r == '\'' || r == '"':
			quote, inWord = r, true
		case r == '&' && redirected && !inWord: // as in 2>&1
		case strings.ContainsRune("|;&", r):
			endCommand()
		case r == '<' || r == '>':
			if strings.Trim(word.String(), "0123456789") == "" { // as in 2>file
				word.Reset()
				inWord = false
			}
			endWord()
			redirected = true
		case r == '#' && !inWord:
			endCommand()
			return commands
		case r == ' ' || r == '\t' || r == '\n':
			endWord()
		default:
			inWord = true
			word.WriteRune(r)
		}
	}
	endCommand()
	return commands
}

func TestCommandsIn(t *testing.T) {
	for line, want := range map[string]string{
		`milkweed status /mnt`:                        "[milkweed status /mnt]",
		`sudo milkweed mount 's3://b?a=1&b=2' "$p" &`: "[milkweed mount s3://b?a=1&b=2 $p]",
		`a | b 'c d' >e f 2>&1 && g; h # i`:           "[a] [b c d f] [g] [h]",
		`a >e # b`:                                    "[a]",
		``:                                            "",
	} {
		var got []string
		for _, words := range commandsIn(line) {
			got = append(got, "["+strings.Join(words, " ")+"]")
		}
		if s := strings.Join(got, " "); s != want {
			t.Errorf("%s: got %s, want %s", line, s, want)
		}
	}
}

// validCommand refuses what the program refuses.
func TestValidCommand(t *testing.T) {
	for words, valid := range map[string]bool{
		"status --json /mnt": true, "status /a /b": false, "stauts": false, "status --jsno": false, "umount": false,
		"top --count x": false, "config show /mnt": true, "config": true, "--version": true,
	} {
		if err := validCommand(strings.Fields(words), false); (err == nil) != valid {
			t.Errorf("%s: %v", words, err)
		}
	}
	for words, valid := range map[string]bool{"umount": true, "check --manifest": true, "check --manfest": false, "stauts": false} {
		if err := validCommand(strings.Fields(words), true); (err == nil) != valid {
			t.Errorf("%s in prose: %v", words, err)
		}
	}
}

// The explanation has the promises of docs/SEMANTICS.md, in its order.
func TestExplanationHasThePromises(t *testing.T) {
	promises := func(file string) (names []string) {
		text, err := os.ReadFile("../../docs/" + file)
		if err != nil {
			t.Fatal(err)
		}
		_, section, _ := strings.Cut(string(text), "\n## Promises\n")
		section, _, _ = strings.Cut(section, "\n## ")
		for _, m := range regexp.MustCompile(`(?m)^\| ([A-Z][^|]*) \|`).FindAllStringSubmatch(section, -1) {
			names = append(names, m[1])
		}
		return names
	}
	got, want := promises("explanation.md"), promises("SEMANTICS.md")
	if !slices.Equal(got, want) || len(want) < 9 {
		t.Errorf("got %q, want %q", got, want)
	}
}
