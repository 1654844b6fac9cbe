json() {    # a checked text as JSON has it
    local text=${!1//\\/\\\\}
    printf '"%s"' "${text//\"/\\\"}"
}
