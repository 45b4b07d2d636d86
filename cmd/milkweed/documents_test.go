package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
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

// namedTest matches the name of a test in a document, such as
// `drivers/blob.TestErrors`: a directory and a function.
var namedTest = regexp.MustCompile("`([a-z/]+)\\.((?:Test|Benchmark|Fuzz)[A-Z]\\w*)`")

// Every test that a document names exists in the directory that it names.
func TestDocumentsNameTests(t *testing.T) {
	sources := make(map[string]string) // the tests of a directory
	names := 0
	for _, file := range documents(t, "*.md", "docs/*.md") {
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
	patterns := []string{"README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs/*.md", "examples/*.md", "examples/*/*.md"}
	for _, file := range documents(t, patterns...) {
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
