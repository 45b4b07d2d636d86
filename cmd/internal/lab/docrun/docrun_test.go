package docrun

import (
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]string{
		"# T\n```sh\necho a\n```\n```text\na\n```\n```toml\nx = 1\n```\n": "",
		"# T\n```\nls\n```\n":               `page.md:2: a block has the info string ""`,
		"# T\n\n```bash\nls\n```\n":         `page.md:3: a block has the info string "bash"`,
		"# T\n```sh\nls\n":                  "page.md:2: the block has no end",
		"# T\n```sh\n$ ls\n```\n":           "page.md:3: a command has a prompt",
		"# T\n- a\n  ```sh\n  ls\n  ```\n":  "page.md:3: a fence is not ```",
		"# T\n~~~sh\nls\n~~~\n":             "page.md:2: a fence is not ```",
		"# T\n```text\na\n```\n":            "page.md:2: a block text does not follow",
		"# T\n```sh\n```\nA\n```text\n```":  "page.md:5: a block text does not follow",
		"# T\n```sh\n```\n```toml\n```sh\n": "page.md:5: the block that begins in line 4 has no end",
		"```sh\nls\n```\n":                  "page.md:1: the page begins with commands",
	} {
		_, err := Parse("page.md", text)
		switch {
		case want == "" && err != nil:
			t.Errorf("%q: %v", text, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
	}
}

// run runs a page in a session of this process's user.
func run(t *testing.T, text string) error {
	t.Helper()
	p, err := Parse("page.md", text)
	if err != nil {
		t.Fatal(err)
	}
	words := p.Words()
	cmd := exec.Command(words[0], words[1:]...)
	cmd.Dir = t.TempDir()
	output, err := cmd.CombinedOutput()
	err = p.Check(string(output), err)

	bash := exec.Command("bash", "-s")
	bash.Dir = t.TempDir()
	if _, other := p.RunOn(bash); (other == nil) != (err == nil) {
		t.Errorf("from standard input: %v; as an argument: %v", other, err)
	}
	return err
}

// The session keeps its directory and its variables from one block to the next. The output of a
// block is what it printed, also on standard error.
func TestRun(t *testing.T) {
	err := run(t, `# Title

`+"```sh"+`
mkdir sub && cd sub
word=7
cat >file <<'END'
in the file

END
`+"```"+`

Prose with `+"`code`"+`.

`+"```sh"+`
cat file; echo "$word files"; basename "$PWD" >&2
`+"```"+`

`+"```text"+`
in the file
9 files
sub
`+"```"+`
`)
	if err != nil {
		t.Error(err)
	}
}

// A failure has the line of the command in the page, and the output before it.
func TestRunFails(t *testing.T) {
	for script, want := range map[string][]string{
		"echo before\n(exit 3)\necho after":         {"page.md:4: this failed: ( exit 3 ): exit status 3", "before"},
		"echo before\nfalse | cat":                  {"page.md:4: this failed: "},
		"if false; then :; fi\nls /none":            {"page.md:4: this failed: ls /none", "/none"},
		"echo $none":                                {"page.md:2: this block did not end", "page.md: line 3: none: unbound variable"},
		"if true; then":                             {"page.md:2: this block did not end", "syntax error"},
		"cat <<'END'\ntext":                         {"page.md:2: this block did not end"},
		"exit 0":                                    {"page.md:2: this block did not end: the session ended without an error"},
		"echo 1\necho 2\n```\n\n```text\n3\n2\nend": {`page.md:8: the output differs: it ends before "end"`, "1\n2"},
	} {
		err := run(t, "# Title\n```sh\n"+script+"\n```\n")
		if err == nil {
			t.Errorf("%q did not fail", script)
			continue
		}
		for _, w := range want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%q: got %v, want %q", script, err, w)
			}
		}
		if strings.ContainsRune(err.Error(), '\x1e') || strings.Contains(err.Error(), "after\n") {
			t.Errorf("%q: got %q", script, err)
		}
	}
	if err := run(t, "# Title\n```sh\ntrue\n```\n```sh\nfalse\n```\n"); err == nil || !strings.Contains(err.Error(), "page.md:6: ") {
		t.Errorf("the second block: %v", err)
	}
}

func TestMatch(t *testing.T) {
	for _, c := range []struct {
		shown, output string
		equal         bool
	}{
		{"a", "a", true},
		{"a", "b", false},
		{"a", "a\nb", false},
		{"a\nb", "a", false},
		{"", "a", false},
		{"a\n\n b   c ", "\na\nb c\n", true},

		{"12 files", "3 files", true},
		{"12 files", "1,797 files", true},
		{"12 files", "3 folders", false},
		{"12 files", "0 files", false},
		{"0 files", "3 files", false},
		{"0 files", "0 files", true},
		{"0.00", "0", true},
		{"0%", "10%", false},
		{"50%", "100%", true},
		{"loss 2.14", "loss 0.5", true},

		{"7.0 MiB", "812 KiB", true},
		{"7.0 MiB", "0 B", false},
		{"0 B", "0 B", true},
		{"12 B", "900 B", true},
		{"up 3s", "up 1m2.5s", true},
		{"up 3s", "up 0s", true},
		{"up 3s", "up 27.4ms", true},
		{"up 3s", "up 3", false},
		{"3 steps", "35 steps", true},
		{"02:13:12", "23:59:00", true},

		{"/home/.../a", "/home/ada/x/a", true},
		{"/home/...", "/root/x", false},
		{"a ... c", "a c", true},
		{"a ... c", "a b c", true},
		{"a ... c", "a b", false},
		{"a.*", "abc", false},
		{"...", "a\nb", true},
		{"...", "", true},
		{"a\n...\nc", "a\nb\nb\nc", true},
		{"a\n...\nc", "a\nc", true},
		{"a\n...\nc", "a\nb", false},
		{"a\n...\nc", "a\nc\nd", false},
		{"...\nc\n...", "a\nc\nd", true},
	} {
		if difference := Match(c.shown, c.output); (difference == "") != c.equal {
			t.Errorf("%q and %q: %q", c.shown, c.output, difference)
		}
	}
}

func TestLinks(t *testing.T) {
	text := "# A `b` c\n## A [b](x.md) c\n## A b c\n[x](../x.md#y) and [y](#a-b-c)\n```\n[z](z)\n# d\n```\n[u](https://example.org/x)\n"
	if got, want := slices.Sorted(maps.Keys(Links(text))), []string{"#a-b-c", "../x.md#y", "x.md"}; !slices.Equal(got, want) {
		t.Errorf("links: got %q, want %q", got, want)
	}
	if got, want := slices.Sorted(maps.Keys(Anchors(text))), []string{"a-b-c", "a-b-c-1", "a-b-c-2"}; !slices.Equal(got, want) {
		t.Errorf("anchors: got %q, want %q", got, want)
	}
	for link, want := range map[string][2]string{"../x.md#y": {"x.md", "y"}, "#y": {"docs/a.md", "y"}, "b.md": {"docs/b.md", ""}} {
		if file, anchor := Target("docs/a.md", link); file != want[0] || anchor != want[1] {
			t.Errorf("%s: %s, %s", link, file, anchor)
		}
	}
}

// A session in a sandbox changes nothing outside, and may leave no mount.
func TestSandbox(t *testing.T) {
	drivertest.Need(t, "root", "unshare", "setpriv")
	outside := t.TempDir() + "/file"
	s := Sandbox{
		Program: "/bin/true", Repo: root, Env: []string{"WORD=a b"},
		Setup:   "echo setup >/mnt/file",
		Stubs:   map[string]string{"stub": "#!/bin/sh\necho stub\n"},
		Replace: []string{"OLD", "new"},
	}
	page := func(script string) *Page {
		p, err := Parse("page.md", "# Title\n```sh\n"+script+"\n```\n")
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	for _, c := range []struct {
		script     string
		user       bool
		says, fail string
	}{
		{script: `echo "$WORD OLD $HOME" && cat /mnt/file && stub && milkweed`, says: "a b new /root\nsetup\nstub\n"},
		{script: `echo OLD; cd; pwd; id -un; sudo id -un; ! touch /etc/x`, user: true, says: "new\n/home/ada\nada\nroot\n"},
		{script: "echo OLD >" + outside + " && touch /etc/milkweed-page /dev/shm/milkweed-page"},
		{script: "sleep 1000 & echo OLD"},
		{script: "echo OLD; mount -i -t fuse.milkweed -o fd=3,rootmode=40000,user_id=0,group_id=0 none /mnt 3<>/dev/fuse", fail: "the page has left these mounts"},
		{script: "true", fail: `the commands lack "OLD"`},
	} {
		s.User = c.user
		output, err := s.Run(t.Context(), page(c.script))
		if (err != nil) != (c.fail != "") || err != nil && !strings.Contains(err.Error(), c.fail) {
			t.Errorf("%s: got error %v, want %q", c.script, err, c.fail)
		}
		if !strings.HasPrefix(output, c.says) {
			t.Errorf("%s printed %q, want %q", c.script, output, c.says)
		}
	}
	for _, file := range []string{outside, "/etc/milkweed-page", "/dev/shm/milkweed-page"} {
		if _, err := os.Lstat(file); err == nil {
			t.Errorf("the session made %s", file)
		}
	}
}
