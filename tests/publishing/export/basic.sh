#!/bin/bash
cd {dir}

export host
export port

create_yml () {{
  echo "Generating connection YAML file..."
  (
    umask 077
    echo -e "host: $host\nport: $port\npassword: $password" > "{dir}/connection.yml"
  )
}}

clean_up () {{
  echo "Cleaning up..."
  pkill -P $$
  exit ${{1:-0}}
}}

source_helpers () {{
  create_passwd () ( echo passwd )
  export -f create_passwd
}}
export -f source_helpers
source_helpers

host=$(hostname)

[[ -e "{dir}/before.sh" ]] && source "{dir}/before.sh"

echo "Script starting..."
"{dir}/script.sh" &
SCRIPT_PID=$!

create_yml

wait ${{SCRIPT_PID}} || clean_up 1
clean_up
