package slurmtest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// An options is the set of options of a command that the stub knows, by their long names. The values
// are the short name, and = if the option has an argument, or =? if that is optional. All of them
// are in the manual page of the command, with this short name and argument.
type options map[string]string

var (
	sbatchOptions = options{
		"account": "A=", "chdir": "D=", "comment": "=", "constraint": "C=", "cpus-per-task": "c=", "error": "e=", "exclusive": "=?",
		"export": "=", "extra": "=", "gpus-per-node": "=", "gres": "=", "input": "i=", "job-name": "J=", "mem": "=",
		"no-requeue": "", "nodelist": "w=", "nodes": "N=", "ntasks": "n=", "ntasks-per-node": "=", "open-mode": "=", "output": "o=",
		"parsable": "", "partition": "p=", "qos": "q=", "requeue": "=?", "signal": "=", "time": "t=", "wait": "W", "wrap": "=",
	}
	srunOptions = options{
		"chdir": "D=", "cpus-per-task": "c=", "exact": "", "export": "=", "gpus-per-node": "=", "gres": "=", "kill-on-bad-exit": "K=?",
		"help": "", "ignore-signals": "=", "label": "l", "mem": "=", "nodelist": "w=", "nodes": "N=", "ntasks": "n=", "ntasks-per-node": "=", "overlap": "", "task-prolog": "=",
		"unbuffered": "u", "wait": "W=",
	}
	sbcastOptions  = options{"compress": "C=?", "force": "f", "preserve": "p", "size": "s=", "timeout": "t=", "verbose": "v"}
	scancelOptions = options{"batch": "b", "full": "f", "quiet": "Q", "signal": "s=", "verbose": "v"}
	noOptions      = options{}
)

// parse returns the options of args by their long names, and the other words, which begin with the
// first that is no option. A flag has the value "yes".
func (o options) parse(args []string) (map[string]string, []string, error) {
	values := make(map[string]string)
	for len(args) > 0 && strings.HasPrefix(args[0], "-") && args[0] != "-" {
		word := args[0]
		args = args[1:]
		if word == "--" {
			break
		}
		if long, ok := strings.CutPrefix(word, "--"); ok {
			name, value, hasValue := strings.Cut(long, "=")
			kind, known := o[name]
			if !known {
				return nil, nil, fmt.Errorf("unrecognized option '--%s'", name)
			}
			_, optional, takes := strings.Cut(kind, "=")
			switch {
			case hasValue && !takes:
				return nil, nil, fmt.Errorf("option '--%s' doesn't allow an argument", name)
			case !hasValue && takes && optional == "":
				if len(args) == 0 {
					return nil, nil, fmt.Errorf("option '--%s' requires an argument", name)
				}
				value, args = args[0], args[1:]
			case !hasValue:
				value = "yes"
			}
			values[name] = value
			continue
		}
		for rest := word[1:]; rest != ""; {
			name := o.long(rest[:1])
			if name == "" {
				return nil, nil, fmt.Errorf("invalid option -- '%s'", rest[:1])
			}
			_, optional, takes := strings.Cut(o[name], "=")
			value := "yes"
			rest = rest[1:]
			if takes && (rest != "" || optional == "") {
				if value = rest; value == "" {
					if len(args) == 0 {
						return nil, nil, fmt.Errorf("option requires an argument -- '%s'", o[name][:1])
					}
					value, args = args[0], args[1:]
				}
				rest = ""
			}
			values[name] = value
		}
	}
	return values, args, nil
}

func (o options) long(short string) string {
	for name, kind := range o {
		if strings.HasPrefix(kind, short) && short != "=" {
			return name
		}
	}
	return ""
}

// directives returns the words of the lines #SBATCH of a script, which end at its first command.
// Quotes are those of a shell.
func directives(script string) ([]string, error) {
	var words []string
	for i, line := range slices.Collect(strings.Lines(script)) {
		line = strings.TrimSpace(line)
		switch {
		case i == 0:
			if !strings.HasPrefix(line, "#!") {
				return nil, errors.New("the first line begins with no interpreter")
			}
		case strings.HasPrefix(line, "#SBATCH "):
			more, err := split(strings.TrimPrefix(line, "#SBATCH "))
			if err != nil {
				return nil, err
			}
			words = append(words, more...)
		case line != "" && !strings.HasPrefix(line, "#"):
			return words, nil
		}
	}
	return words, nil
}

// split divides a directive into words. A # at the beginning of a word starts a comment.
func split(text string) ([]string, error) {
	var words []string
	var word strings.Builder
	inWord, quote := false, byte(0)
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case quote != 0 && c == quote:
			quote = 0
		case quote == '"' && c == '\\' && i+1 < len(text):
			i++
			word.WriteByte(text[i])
		case quote != 0:
			word.WriteByte(c)
		case c == '"' || c == '\'':
			quote, inWord = c, true
		case c == ' ' || c == '\t':
			if inWord {
				words = append(words, word.String())
				word.Reset()
				inWord = false
			}
		case c == '#' && !inWord:
			return words, nil
		default:
			word.WriteByte(c)
			inWord = true
		}
	}
	if quote != 0 {
		return nil, fmt.Errorf("a quote without an end: %s", text)
	}
	if inWord {
		words = append(words, word.String())
	}
	return words, nil
}
