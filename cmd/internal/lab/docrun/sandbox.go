package docrun

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/milkweedfs/milkweed/cmd/internal/lab"
)

// A Sandbox is where the session of a page runs: a copy of this system, in which a package of
// Milkweed is installed, and whose changes are discarded. It has its own processes, and its own
// mounts; the network is that of the machine. The home of the user, /mnt, /srv, /tmp, /var and
// /dev/shm are empty. It needs root.
type Sandbox struct {
	Program string            // the path of the program milkweed
	Repo    string            // the root of the repository, of which the package has examples and documents
	User    bool              // an ordinary user runs the session, and not root; sudo works
	Env     []string          // of the session, beside HOME, PATH and the like
	Setup   string            // a script that root runs in the sandbox before the session; sh -e
	Stubs   map[string]string // programs in the PATH before all others: shell scripts with their names
	Replace []string          // pairs: what is in the page, and what the session has instead
}

// enter is the script that makes the sandbox. It runs in new namespaces, as process 1.
//
//go:embed sandbox.sh
var enter string

// Run runs the session of a page, and returns its output. It returns an error if a command fails, if the output of one is
// not the output shown, or if a mount of Milkweed is left at the end. All processes of the session
// have ended when Run returns.
func (s Sandbox) Run(ctx context.Context, p *Page) (output string, err error) {
	dir, err := os.MkdirTemp("", "milkweed-page-")
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := os.Chmod(dir, 0o755); err != nil {
		return "", err
	}
	if err := os.Mkdir(dir+"/stubs", 0o755); err != nil {
		return "", err
	}
	for name, script := range s.Stubs {
		if err := os.WriteFile(dir+"/stubs/"+name, []byte(script), 0o755); err != nil {
			return "", err
		}
	}
	session := p.Words()
	for i := 0; i < len(s.Replace); i += 2 {
		if !strings.Contains(session[2], s.Replace[i]) {
			return "", fmt.Errorf("%s: the commands lack %q", p.name, s.Replace[i])
		}
		session[2] = strings.ReplaceAll(session[2], s.Replace[i], s.Replace[i+1])
	}
	user := "root"
	if s.User {
		user = "ada"
	}
	words := []string{"--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation=private",
		"bash", "-euc", enter, "enter", dir, s.Program, s.Repo, user, s.Setup}
	words = append(append(append(words, lab.OpenTimeout), s.Env...), session...)
	cmd := exec.CommandContext(ctx, "unshare", words...)
	var b bytes.Buffer
	cmd.Stdout, cmd.Stderr = &b, &b
	err = cmd.Run()
	return mark.ReplaceAllString(b.String(), ""), p.Check(b.String(), err)
}
